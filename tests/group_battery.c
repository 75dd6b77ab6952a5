#include "tests/group_battery.h"

#include "tests/test.h"

#include <pthread.h>
#include <unistd.h>

enum { SIZE_MOST = 70001, ROUNDS = 4, LONG_MS = 60000 };

/* A member: its device's memory, the image of it here, and a place in the queue. */
struct member {
    const struct group_ops *ops;
    struct group *group;
    struct device *device;
    int rank, count, timeout_ms;
    struct device_event *event;
    float *memory, *image; /* [(count + 1) * SIZE_MOST] */
    void (*run)(struct member *member);
    int absent; /* the rank of the one that does not do as the others */
};

static void *member_main(void *argument) {
    struct member *member = argument;
    member->run(member);
    return NULL;
}

static void member_open(struct member *member, int64_t floats) {
    const struct device_backend *backend = member->device->backend;
    member->event = backend->event_open(member->device);
    member->memory = backend->take(member->device, (size_t)floats * sizeof(float));
    member->image = backend->take_pinned(member->device, (size_t)floats * sizeof(float));
    CHECK(member->memory && member->image);
}

static void member_close(struct member *member) {
    const struct device_backend *backend = member->device->backend;
    backend->event_close(member->device, member->event);
    backend->give(member->device, member->memory);
    backend->give_pinned(member->device, member->image);
}

/* A thread for each device. Memory is taken before and given back after: CUDA may wait for all
 * devices then, which another member's collective, waiting for this one, would keep from ending. */
static void run_members(const struct group_ops *ops, struct device *const *devices, int count,
                        int timeout_ms, void (*run)(struct member *member), int absent) {
    struct member members[GROUP_MAX];
    pthread_t threads[GROUP_MAX];
    struct group *group = NULL;
    CHECK_INT(ops->open(&group, devices, count, timeout_ms), STATUS_OK);
    CHECK_INT(group->count, count);
    for (int i = 0; i < count; i++) {
        members[i] = (struct member){.ops = ops,
                                     .group = group,
                                     .device = devices[i],
                                     .rank = i,
                                     .count = count,
                                     .timeout_ms = timeout_ms,
                                     .run = run,
                                     .absent = absent};
        member_open(&members[i], (int64_t)(count + 1) * SIZE_MOST);
    }
    for (int i = 0; i < count; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, member_main, &members[i]), 0);
    for (int i = 0; i < count; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < count; i++)
        member_close(&members[i]);
    CHECK_INT(ops->close(group), STATUS_OK);
}

/* The first `floats` of the memory, on one queue that is not the model's. */
static void copy(const struct member *member, enum device_direction direction, int64_t floats) {
    void *to = direction == DEVICE_TO ? member->memory : member->image;
    void *from = direction == DEVICE_TO ? member->image : member->memory;
    member->device->backend->copy(member->device, DEVICE_COPY_OUT, to, from,
                                  (size_t)floats * sizeof(float), direction);
}

static enum status sync_member(const struct member *member) {
    member->device->backend->event_record(member->device, member->event, DEVICE_COPY_OUT);
    return member->ops->sync(member->group, member->rank, member->event);
}

/* memory [count, size]: sum r at member r, all in one call. */
static void sum_to_each(const struct member *member, int64_t size) {
    struct group_piece sums[GROUP_MAX];
    for (int root = 0; root < member->count; root++)
        sums[root] = (struct group_piece){
            .values = member->memory + root * size, .count = size, .root = root};
    member->ops->sum_to(member->group, member->rank, DEVICE_COPY_OUT, sums,
                        (uint64_t)member->count);
}

/* memory [count, size]: member r's part r to all, in one call. */
static void spread_each(const struct member *member, int64_t size) {
    struct group_piece pieces[GROUP_MAX];
    for (int root = 0; root < member->count; root++)
        pieces[root] = (struct group_piece){
            .values = member->memory + root * size, .count = size, .root = root};
    member->ops->spread(member->group, member->rank, DEVICE_COPY_OUT, pieces,
                        (uint64_t)member->count);
}

static void gather(const struct member *member, const float *from, float *to, int64_t count) {
    member->ops->gather(member->group, member->rank, DEVICE_COPY_OUT, from, to,
                        (size_t)count * sizeof *from);
}

/* ---- values */

/* Of member `rank` at place i of its memory, in a round. */
static float value(int rank, int64_t i, int round) {
    return (float)((rank + 1) * (int)(i % 1000) + 7 * round);
}

static void fill(const struct member *member, int64_t floats, int round) {
    for (int64_t i = 0; i < floats; i++)
        member->image[i] = value(member->rank, i, round);
    copy(member, DEVICE_TO, floats);
}

/* The sum of all members' values at a place: rank + 1 adds up to count (count + 1) / 2. */
static double summed(int count, int64_t i, int round) {
    const int ranks = count * (count + 1) / 2;
    return (double)ranks * (double)(i % 1000) + 7.0 * round * count;
}

/* ---- collectives */

/* memory: [count, size] to be summed, and [size] that is not. All but the own sum stays. */
static void check_sum(const struct member *member, int64_t size, int round) {
    const int64_t own = member->rank * size;
    const int64_t all = member->count * size;
    fill(member, all + size, round);
    sum_to_each(member, size);
    copy(member, DEVICE_FROM, all + size);
    CHECK_INT(sync_member(member), STATUS_OK);
    CHECK_INT(member->ops->status(member->group), STATUS_OK);
    for (int64_t i = 0; i < all + size; i++)
        CHECK_NEAR(member->image[i],
                   i >= own && i < own + size ? summed(member->count, i, round)
                                              : (double)value(member->rank, i, round),
                   0.0);
}

/* As check_sum; part r of all members becomes member r's. */
static void check_spread(const struct member *member, int64_t size, int round) {
    const int64_t all = member->count * size;
    fill(member, all + size, round);
    spread_each(member, size);
    copy(member, DEVICE_FROM, all + size);
    CHECK_INT(sync_member(member), STATUS_OK);
    for (int64_t i = 0; i < all + size; i++)
        CHECK_NEAR(member->image[i], value(i < all ? (int)(i / size) : member->rank, i, round),
                   0.0);
}

/* What a value of a piece becomes, and of which members. */
static double uneven_value(const struct member *member, const struct group_piece *piece, int64_t i,
                           bool sum) {
    if (!sum) return value(piece->root, i, 1);
    return piece->root == member->rank ? summed(member->count, i, 1) : value(member->rank, i, 1);
}

/* Pieces of different sizes with gaps between them, a root more than once, and one of nothing. */
static void check_uneven(const struct member *member, bool sum) {
    enum { PIECES = 5 };
    static const int64_t sizes[PIECES] = {5, 0, 1000, 1, 70};
    struct group_piece pieces[PIECES];
    int64_t at = 3;
    for (int k = 0; k < PIECES; k++) {
        pieces[k] = (struct group_piece){
            .values = member->memory + at, .count = sizes[k], .root = (k + 1) / 2 % member->count};
        at += sizes[k] + 2;
    }
    fill(member, at, 1);
    if (sum)
        member->ops->sum_to(member->group, member->rank, DEVICE_COPY_OUT, pieces, PIECES);
    else
        member->ops->spread(member->group, member->rank, DEVICE_COPY_OUT, pieces, PIECES);
    copy(member, DEVICE_FROM, at);
    CHECK_INT(sync_member(member), STATUS_OK);
    for (int64_t i = 0; i < at; i++) {
        double expected = value(member->rank, i, 1);
        for (int k = 0; k < PIECES; k++) {
            int64_t start = pieces[k].values - member->memory;
            if (i >= start && i < start + pieces[k].count)
                expected = uneven_value(member, &pieces[k], i, sum);
        }
        CHECK_NEAR(member->image[i], expected, 0.0);
    }
}

/* memory: [count, size] to gather in, and, out of place, [size] behind it, which is `from`. */
static void check_gather(const struct member *member, int64_t size, bool in_place, int round) {
    const int64_t all = member->count * size;
    const int64_t from = in_place ? member->rank * size : all;
    fill(member, all + size, round);
    gather(member, member->memory + from, member->memory, size);
    copy(member, DEVICE_FROM, all);
    CHECK_INT(sync_member(member), STATUS_OK);
    for (int64_t i = 0; i < all; i++) {
        const int64_t shown = in_place ? i : all + i % size;
        CHECK_NEAR(member->image[i], value((int)(i / size), shown, round), 0.0);
    }
}

/* Gathers of sums in place, with no wait in between. */
static void check_rounds(const struct member *member) {
    const int64_t size = 33;
    const int64_t all = member->count * size;
    float *own = member->memory + member->rank * size;
    double expected = 1.0;
    for (int64_t i = 0; i < all; i++)
        member->image[i] = (float)(i % 100);
    copy(member, DEVICE_TO, all);
    for (int round = 0; round < ROUNDS; round++) {
        sum_to_each(member, size);
        gather(member, own, member->memory, size);
        expected *= member->count;
    }
    copy(member, DEVICE_FROM, all);
    CHECK_INT(sync_member(member), STATUS_OK);
    for (int64_t i = 0; i < all; i++)
        CHECK_NEAR(member->image[i], (double)(i % 100) * expected, 0.0);
}

static void collectives(struct member *member) {
    static const int64_t sizes[] = {1, 3, 1000, SIZE_MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_sum(member, sizes[i], (int)i);
        check_spread(member, sizes[i], (int)i + 2);
        for (int in_place = 0; in_place < 2; in_place++)
            check_gather(member, sizes[i], in_place, (int)i + 1);
    }
    check_uneven(member, true);
    check_uneven(member, false);
    check_rounds(member);
}

void group_battery_collectives(const struct group_ops *ops, struct device *const *devices,
                               int count) {
    run_members(ops, devices, count, LONG_MS, collectives, -1);
}

/* ---- members that do not come */

/* And from now on at once. */
static void check_ended(struct member *member, enum status expected) {
    float *own = member->memory + member->rank;
    for (int i = 0; i < 3; i++) {
        sum_to_each(member, 1);
        spread_each(member, 1);
        gather(member, own, member->memory, 1);
        CHECK_INT(sync_member(member), expected);
        CHECK_INT(member->ops->status(member->group), expected);
    }
}

static void one_gives_up(struct member *member) {
    if (member->rank == member->absent) {
        usleep(50000); /* so that the others, as a rule, wait already */
        member->ops->abort(member->group, member->rank);
    }
    check_ended(member, STATUS_PEER_LOST);
}

void group_battery_abort(const struct group_ops *ops, struct device *const *devices, int count) {
    run_members(ops, devices, count, LONG_MS, one_gives_up, 0);
    run_members(ops, devices, count, LONG_MS, one_gives_up, count - 1);
}

static void one_is_away(struct member *member) {
    if (member->rank == member->absent) usleep(2 * (useconds_t)member->timeout_ms * 1000);
    check_ended(member, STATUS_TIMEOUT);
}

void group_battery_timeout(const struct group_ops *ops, struct device *const *devices, int count,
                           int timeout_ms) {
    run_members(ops, devices, count, timeout_ms, one_is_away, 0);
    run_members(ops, devices, count, timeout_ms, one_is_away, count - 1);
}

static void all_fail(struct member *member) {
    check_ended(member, STATUS_DEVICE);
}

void group_battery_failure(const struct group_ops *ops, struct device *const *devices, int count,
                           int timeout_ms) {
    run_members(ops, devices, count, timeout_ms, all_fail, -1);
}
