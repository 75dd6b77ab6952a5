#include "worker/model_mirror.h"

#include "base/assert.h"
#include "base/log.h"
#include "kernels/compute.h"
#include "proto/codec_id.h"
#include "worker/model_team.h"
#include "worker/raw_weights.h"

#include <stdlib.h>
#include <string.h>

struct model_mirror {
    struct device *device;
    const struct plan *plan;
    const float *source;       /* weights of the host; NULL: the device has its own */
    const uint8_t *codecs;     /* [plan.block_count] of those; NULL: f32 */
    float *weights, *gradient; /* the device's; this is its memory */
    int32_t *batch;            /* [2, rows_most] the device's: tokens, then targets */
    int32_t *staged;           /* pinned, of the same size */
    float *losses;             /* [rows_most] pinned */
    int64_t rows_most;
    struct device_event *place; /* between queues: each wait is queued at once */
    struct model_team *team;    /* or NULL */
    int rank;
    struct group_piece *sums; /* [team_pieces_most] of one tensor */
    /* The gradient's tensors that were sent in this pass. */
    uint64_t *sent;                /* [tensor_count] */
    struct device_event **arrived; /* [tensor_count] of each tensor */
    uint64_t sent_count, come_count, told_count;
    bool stays; /* they are not copied */
};

uint64_t model_copies_bytes(uint64_t value_count, const struct model_options *options) {
    uint64_t vector = value_count * sizeof(float);
    uint64_t batch = 2 * (uint64_t)(options->B * options->T) * sizeof(int32_t);
    return vector + batch + (options->training ? vector : 0);
}

static enum status take_memory(struct model_mirror *mirror, bool training) {
    struct device *device = mirror->device;
    size_t vector = (size_t)mirror->plan->value_count * sizeof(float);
    size_t rows = (size_t)mirror->rows_most;
    mirror->weights = device_take(device, vector);
    mirror->batch = device_take(device, 2 * rows * sizeof(int32_t));
    mirror->staged = device_take_pinned(device, 2 * rows * sizeof(int32_t));
    mirror->losses = device_take_pinned(device, rows * sizeof(float));
    if (training) mirror->gradient = device_take(device, vector);
    bool taken = mirror->weights != NULL && mirror->batch != NULL && mirror->staged != NULL &&
                 mirror->losses != NULL && (!training || mirror->gradient != NULL);
    return taken ? STATUS_OK : STATUS_MEMORY;
}

enum status mirror_open(struct model_mirror **mirror, struct device *device,
                        const struct plan *plan, const struct model_options *options) {
    struct model_mirror *made = memory_zeroed(1, sizeof(*made));
    ASSERT(options->codecs == NULL || options->training);
    *made = (struct model_mirror){.device = device,
                                  .plan = plan,
                                  .codecs = options->codecs,
                                  .rows_most = options->B * options->T,
                                  .team = options->team,
                                  .rank = options->rank};
    if (take_memory(made, options->training) != STATUS_OK) {
        mirror_close(made);
        return STATUS_MEMORY;
    }
    made->place = device_event_open(device);
    if (made->team != NULL)
        made->sums = memory_zeroed((size_t)team_pieces_most(made->team), sizeof(*made->sums));
    made->sent = memory_zeroed((size_t)plan->tensor_count, sizeof(*made->sent));
    made->arrived = memory_zeroed((size_t)plan->tensor_count, sizeof(struct device_event *));
    for (uint64_t i = 0; i < plan->tensor_count; i++)
        made->arrived[i] = device_event_open(device);
    *mirror = made;
    return STATUS_OK;
}

void mirror_close(struct model_mirror *mirror) {
    if (mirror == NULL) return;
    struct device *device = mirror->device;
    (void)mirror_settle(mirror);
    enum status status = device_wait(device, DEVICE_CODEC);
    (void)status; /* who fails is idle, too */
    device_event_close(device, mirror->place);
    for (uint64_t i = 0; mirror->arrived != NULL && i < mirror->plan->tensor_count; i++)
        device_event_close(device, mirror->arrived[i]);
    device_give(device, mirror->weights);
    device_give(device, mirror->gradient);
    device_give(device, mirror->batch);
    device_give_pinned(device, mirror->staged);
    device_give_pinned(device, mirror->losses);
    free(mirror->sums);
    free(mirror->arrived);
    free(mirror->sent);
    free(mirror);
}

float *mirror_weights(const struct model_mirror *mirror) {
    return mirror->weights;
}

float *mirror_gradient(const struct model_mirror *mirror) {
    return mirror->gradient;
}

const int32_t *mirror_tokens(const struct model_mirror *mirror) {
    return mirror->batch;
}

const int32_t *mirror_targets(const struct model_mirror *mirror) {
    return mirror->batch + mirror->rows_most;
}

/* What is queued on `queue` from now on waits for all that is on `other` now. */
static void follow(struct model_mirror *mirror, enum device_queue queue, enum device_queue other) {
    device_event_record(mirror->device, mirror->place, other);
    device_event_wait(mirror->device, queue, mirror->place);
}

void mirror_expect(struct model_mirror *mirror, const float *weights) {
    mirror->source = weights;
    follow(mirror, DEVICE_COPY_IN, DEVICE_COMPUTE);
}

static void copy_values(struct model_mirror *mirror, uint64_t at, uint64_t count) {
    if (count > 0)
        device_copy(mirror->device, DEVICE_COPY_IN, mirror->weights + at, mirror->source + at,
                    (size_t)count * sizeof(float), DEVICE_TO);
}

/* Where the gradient will be, weights that are bfloat16 wait until they are widened. */
static uint16_t *waiting_at(const struct model_mirror *mirror, uint64_t at) {
    return (uint16_t *)(void *)(mirror->gradient + at);
}

static void widen(struct model_mirror *mirror, enum device_queue queue, uint64_t at,
                  uint64_t count) {
    if (count == 0) return;
    if (queue != DEVICE_COPY_IN) follow(mirror, queue, DEVICE_COPY_IN);
    mirror->device->compute->widen(mirror->device, queue, waiting_at(mirror, at),
                                   mirror->weights + at, (int64_t)count);
}

/* Each block's values as they are on the host. Bfloat16 of blocks that follow each other is widened
 * at once, on `queue`. */
static void copy_weights(struct model_mirror *mirror, enum device_queue queue, uint64_t at,
                         uint64_t count) {
    const struct plan_block *blocks = mirror->plan->blocks;
    const uint64_t end = at + count;
    uint64_t first = at; /* of those that wait */
    if (mirror->codecs == NULL || count == 0) {
        copy_values(mirror, at, count);
        return;
    }
    for (uint64_t id = raw_weights_block(mirror->plan, at), to; at < end; id++, at = to) {
        const uint64_t offset = blocks[id].offset, block_end = offset + blocks[id].count;
        to = block_end < end ? block_end : end;
        if (mirror->codecs[id] == CODEC_BF16) {
            const uint16_t *from = (const uint16_t *)(const void *)(mirror->source + offset);
            device_copy(mirror->device, DEVICE_COPY_IN, waiting_at(mirror, first) + (at - first),
                        from + (at - offset), (size_t)(to - at) * sizeof(*from), DEVICE_TO);
        } else {
            widen(mirror, queue, first, at - first);
            copy_values(mirror, at, to - at);
            first = to;
        }
    }
    widen(mirror, queue, first, end - first);
}

/* A kernel ahead of the next copy would wait for room beside those that compute. So they widen on
 * DEVICE_COMPUTE, but for what is gathered then. */
static void load_values(struct model_mirror *mirror, uint64_t at, uint64_t count) {
    uint64_t members = mirror->team != NULL ? (uint64_t)team_members(mirror->team) : 1;
    uint64_t part = members > 1 ? count / members : 0;
    if (part > 0) {
        uint64_t own = at + (uint64_t)mirror->rank * part;
        copy_weights(mirror, DEVICE_COPY_IN, own, part);
        group_gather(team_group(mirror->team), mirror->rank, DEVICE_COPY_IN, mirror->weights + own,
                     mirror->weights + at, (size_t)part * sizeof(float));
    }
    copy_weights(mirror, DEVICE_COMPUTE, at + part * members, count - part * members);
}

/* A plan keeps a layer's matrices side by side, and its vectors: one copy for each. */
void mirror_load(struct model_mirror *mirror, uint64_t first, uint64_t count) {
    const struct plan *plan = mirror->plan;
    uint64_t at = 0, values = 0;
    if (mirror->source == NULL) return;
    for (uint32_t dims = 1; dims <= 2; dims++) {
        for (uint64_t tensor = first; tensor < first + count; tensor++) {
            if (plan->tensors[tensor].dims != dims) continue;
            if (plan->offsets[tensor] != at + values) {
                load_values(mirror, at, values);
                at = plan->offsets[tensor];
                values = 0;
            }
            values += plan_values(plan, tensor);
        }
    }
    load_values(mirror, at, values);
    follow(mirror, DEVICE_COMPUTE, DEVICE_COPY_IN);
}

void mirror_batch(struct model_mirror *mirror, const int32_t *tokens, const int32_t *targets,
                  int64_t rows) {
    size_t bytes = (size_t)rows * sizeof(*tokens);
    ASSERT_OP(rows, <=, mirror->rows_most);
    memcpy(mirror->staged, tokens, bytes);
    memcpy(mirror->staged + mirror->rows_most, targets, bytes);
    device_copy(mirror->device, DEVICE_COMPUTE, mirror->batch, mirror->staged, bytes, DEVICE_TO);
    device_copy(mirror->device, DEVICE_COMPUTE, mirror->batch + mirror->rows_most,
                mirror->staged + mirror->rows_most, bytes, DEVICE_TO);
}

/* Of collectives that are done. */
static enum status team_status(const struct model_mirror *mirror) {
    if (mirror->team == NULL) return STATUS_OK;
    return group_sync(team_group(mirror->team), mirror->rank, mirror->place);
}

const float *mirror_losses(struct model_mirror *mirror, const float *losses, int64_t rows) {
    device_copy(mirror->device, DEVICE_COMPUTE, mirror->losses, losses,
                (size_t)rows * sizeof(*losses), DEVICE_FROM);
    if (mirror->team == NULL) {
        return device_wait(mirror->device, DEVICE_COMPUTE) == STATUS_OK ? mirror->losses : NULL;
    }
    /* The group watches this wait: it may be behind a gather that another member never makes. */
    device_event_record(mirror->device, mirror->place, DEVICE_COMPUTE);
    return team_status(mirror) == STATUS_OK ? mirror->losses : NULL;
}

enum status mirror_settle(struct model_mirror *mirror) {
    static const enum device_queue queues[] = {DEVICE_COPY_IN, DEVICE_COMPUTE, DEVICE_COPY_OUT};
    enum status first = STATUS_OK;
    for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++) {
        enum status status = device_wait(mirror->device, queues[i]);
        if (first == STATUS_OK) first = status;
    }
    if (first == STATUS_OK) first = team_status(mirror);
    return first;
}

static void copy_gradient(struct model_mirror *mirror, float *values, uint64_t at, uint64_t count) {
    device_copy(mirror->device, DEVICE_COPY_OUT, values + at, mirror->gradient + at,
                (size_t)count * sizeof(*values), DEVICE_FROM);
}

/* The team's sums of the tensor, in place; its own pieces -> values. */
static void sum_pieces(struct model_mirror *mirror, uint64_t tensor, float *values) {
    const struct team_piece *pieces;
    uint64_t count = team_pieces(mirror->team, tensor, &pieces);
    for (uint64_t i = 0; i < count; i++) {
        mirror->sums[i] = (struct group_piece){.values = mirror->gradient + pieces[i].at,
                                               .count = (int64_t)pieces[i].count,
                                               .root = pieces[i].owner};
    }
    group_sum_to(team_group(mirror->team), mirror->rank, DEVICE_COPY_OUT, mirror->sums, count);
    for (uint64_t i = 0; i < count && values != NULL; i++) {
        if (pieces[i].owner == mirror->rank)
            copy_gradient(mirror, values, pieces[i].at, pieces[i].count);
    }
}

void mirror_send(struct model_mirror *mirror, uint64_t tensor, float *values) {
    const struct plan *plan = mirror->plan;
    ASSERT_OP(mirror->sent_count, <, plan->tensor_count);
    mirror->stays = values == NULL;
    bool leaves = mirror->team != NULL || !mirror->stays; /* what is computed is not yet all */
    if (leaves) follow(mirror, DEVICE_COPY_OUT, DEVICE_COMPUTE);
    if (mirror->team != NULL) {
        sum_pieces(mirror, tensor, values);
    } else if (!mirror->stays) {
        copy_gradient(mirror, values, plan->offsets[tensor], plan_values(plan, tensor));
    }
    device_event_record(mirror->device, mirror->arrived[tensor],
                        leaves ? DEVICE_COPY_OUT : DEVICE_COMPUTE);
    mirror->sent[mirror->sent_count++] = tensor;
}

const struct device_event *mirror_ready_event(const struct model_mirror *mirror, uint64_t tensor) {
    return mirror->arrived[tensor];
}

static enum status wait_for(struct model_mirror *mirror, uint64_t tensor) {
    const struct device_event *event = mirror->arrived[tensor];
    if (mirror->team == NULL) return device_sync(mirror->device, event);
    return group_sync(team_group(mirror->team), mirror->rank, event);
}

/* Whether this member has done its part of the next tensor: OK, AGAIN, or what failed. Of one that
 * stays nothing is to come: who is told queues its work behind the event. But a member whose device
 * has failed must not let others send sums that have its part. */
static enum status next_came(struct model_mirror *mirror, bool waits) {
    uint64_t tensor = mirror->sent[mirror->come_count];
    if (mirror->team == NULL && mirror->stays) return STATUS_OK;
    if (waits && !mirror->stays) return wait_for(mirror, tensor);
    enum status status = device_done(mirror->device, mirror->arrived[tensor]);
    if (status != STATUS_OK && !(status == STATUS_AGAIN && mirror->stays)) return status;
    return mirror->team != NULL ? group_status(team_group(mirror->team)) : STATUS_OK;
}

/* What has come here; in a team the others hear of it. */
static enum status take_copies(struct model_mirror *mirror, bool all) {
    while (mirror->come_count < mirror->sent_count) {
        TRY(next_came(mirror, all));
        if (mirror->team != NULL) team_part(mirror->team, mirror->sent[mirror->come_count]);
        mirror->come_count++;
    }
    return STATUS_OK;
}

/* Whether a tensor that came here has come to all members. */
static enum status came_to_all(const struct model_mirror *mirror, uint64_t tensor, bool waits) {
    if (mirror->team == NULL || mirror->rank > 0) return STATUS_OK;
    return waits ? team_wait_parts(mirror->team, tensor) : team_parts(mirror->team, tensor);
}

/* In a team others' sums read a gradient that stays: behind this the next one may be computed. */
static enum status wait_for_staying(struct model_mirror *mirror) {
    for (uint64_t i = 0; i < mirror->sent_count && mirror->stays; i++)
        TRY(wait_for(mirror, mirror->sent[i]));
    return STATUS_OK;
}

/* What is queued ends, also where it waits for a member that never comes. */
static void give_up(struct model_mirror *mirror) {
    if (mirror->team != NULL) group_abort(team_group(mirror->team), mirror->rank);
    (void)mirror_settle(mirror);
}

enum status mirror_tell(struct model_mirror *mirror, bool all, model_ready_fn *ready,
                        void *context) {
    enum status status = take_copies(mirror, all), told = STATUS_OK;
    while (mirror->told_count < mirror->come_count && told == STATUS_OK) {
        uint64_t tensor = mirror->sent[mirror->told_count];
        told = came_to_all(mirror, tensor, all && status == STATUS_OK);
        if (told != STATUS_OK) break;
        if (ready != NULL) ready(context, tensor);
        mirror->told_count++;
    }
    if (status == STATUS_OK || status == STATUS_AGAIN) status = told == STATUS_OK ? status : told;
    if (all && status == STATUS_OK) status = wait_for_staying(mirror);
    if (all) mirror->sent_count = mirror->come_count = mirror->told_count = 0;
    if (all && status != STATUS_OK) give_up(mirror);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}
