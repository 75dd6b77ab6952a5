/* Proves what channel_shm's parts promise that needs no second process: a ring orders the memory
 * that its items speak of (both ends in threads of one process, which a thread sanitizer can
 * follow), shows more items than it has room for, and tells who sleeps; pieces of the ring for
 * copied payloads never overlap, in any order of giving back.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "tests/test.h"
#include "transport/shm_bounce.h"
#include "transport/shm_box.h"

#include <pthread.h>

/* Pieces of odd lengths, given back in a mixed order: none overlaps another. */
static void test_bounce(void) {
    struct shm_bounce_piece pieces[8];
    struct shm_bounce bounce = {.bytes = 4096, .pieces = pieces, .pieces_max = 8};
    struct {
        size_t from, bytes;
        uint32_t piece;
    } taken[8];
    size_t count = 0, total = 0, refused = 0;
    uint64_t random = 1;
    for (int i = 0; i < 20000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407U;
        size_t bytes = 1 + (random >> 33) % (i % 50 ? 1500 : 4096);
        size_t from = 0;
        uint32_t piece = shm_bounce_take(&bounce, bytes, &from);
        if (piece == SHM_BOUNCE_NONE) {
            CHECK(count > 0); // an empty ring has room for any
            size_t which = (random >> 20) % count;
            shm_bounce_give(&bounce, taken[which].piece);
            taken[which] = taken[--count];
            refused++;
            continue;
        }
        CHECK(from % MEMORY_ALIGN == 0 && from + bytes <= 4096);
        for (size_t k = 0; k < count; k++) {
            CHECK(from + bytes <= taken[k].from || taken[k].from + taken[k].bytes <= from);
        }
        taken[count].from = from;
        taken[count].bytes = bytes;
        taken[count++].piece = piece;
        total++;
    }
    CHECK(total > 5000 && refused > 5000);
}

struct two_threads {
    struct shm_box put, take;
    uint64_t payloads[256]; /* plain memory, which the ring orders */
};

static void *put_items(void *argument) {
    struct two_threads *two = argument;
    for (uint64_t i = 0; i < 256; i++) {
        uint64_t item[2] = {i, ~i};
        two->payloads[i] = i * i;
        shm_box_put(&two->put, item);
    }
    return NULL;
}

/* Both ends in one mapping, so that a thread sanitizer sees the order that the ring gives. */
static void test_box_between_threads(void) {
    static struct two_threads two;
    uint8_t *memory = memory_zeroed(1, shm_box_bytes(256, 2));
    two.put = two.take = (struct shm_box){.memory = memory, .items = 256, .item_words = 2};
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, put_items, &two), 0);
    int64_t end_ns = clock_now_ns() + 120 * CLOCK_S; // against a hang
    for (uint64_t i = 0; i < 256;) {
        uint64_t item[2];
        enum status status = shm_box_take(&two.take, item);
        CHECK(clock_now_ns() < end_ns);
        if (status == STATUS_AGAIN) continue;
        CHECK_INT(status, STATUS_OK);
        CHECK(item[0] == i && item[1] == ~i && two.payloads[i] == i * i);
        i++;
    }
    CHECK_INT(pthread_join(thread, NULL), 0);
    free(memory);
}

/* 8 items: full is the owner's care, but a count beyond it is seen. */
static void test_box_limits(void) {
    uint8_t *memory = memory_zeroed(1, shm_box_bytes(8, 1));
    struct shm_box put = {.memory = memory, .items = 8, .item_words = 1}, take = put;
    uint64_t item = 0;
    CHECK(!shm_box_has(&take));
    CHECK_INT(shm_box_take(&take, &item), STATUS_AGAIN);
    put.count = take.count = UINT32_MAX - 3; // counts wrap
    for (uint64_t round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 8; i++) {
            shm_box_put(&put, &i);
            CHECK(shm_box_has(&take));
        }
        for (uint64_t i = 0; i < 8; i++) {
            CHECK_INT(shm_box_take(&take, &item), STATUS_OK);
            CHECK_INT(item, i);
        }
        CHECK_INT(shm_box_take(&take, &item), STATUS_AGAIN);
    }
    for (uint64_t i = 0; i < 9; i++) {
        shm_box_put(&put, &i);
    }
    CHECK_INT(shm_box_take(&take, &item), STATUS_CORRUPT);
    CHECK_INT(shm_box_sleep(&take), 0);
    shm_box_set_sleep(&put, 7);
    CHECK_INT(shm_box_sleep(&take), 7);
    free(memory);
}

int main(void) {
    TEST_RUN(test_bounce);
    TEST_RUN(test_box_between_threads);
    TEST_RUN(test_box_limits);
    return 0;
}
