#include "worker/node.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/threads.h"
#include "worker/model_team.h"

#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

enum order { ORDER_FORWARD, ORDER_BACKWARD, ORDER_PART, ORDER_END };

struct member {
    struct node *node;
    struct device *device;
    struct model *model;
    pthread_t thread; /* not member 0's */
    int rank;
    uint64_t gates; /* of the pass under way that it has come to */
    /* Its share of the pass. */
    struct model_batch batch;
    struct model_gradient gradient;
    int64_t count; /* targets that count; 0 as well if its sequences are others' */
    float loss;
};

struct node {
    struct member members[GROUP_MAX];
    int count;
    struct device *first;
    struct group *group; /* NULL, as all below, with one device */
    struct model_team *team;
    int threads; /* of a member's kernels; 0: as they are */
    int started; /* threads */
    enum status status;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* What all do: written by the caller while the others wait for an order. */
    enum order order;
    uint64_t orders;
    int busy; /* members that have not done it, besides the first */
    const float *weights;
    bool load, expect, has_gradient;
    struct model_gate gate;
    model_ready_fn *ready;
    node_part_fn *part;
    void *context; /* of either */
};

/* ---- devices ---- */

enum status node_open_devices(const struct device_names *named, struct device **devices,
                              int *count) {
    int wanted = named->count > 0 ? named->count : device_count(named->kind);
    *count = 0;
    if (wanted == 0) return STATUS_DEVICE;
    if (wanted > GROUP_MAX) {
        log_warn("--device %s: of %d devices that are here the first %d are used, the most of a "
                 "worker; another worker can have the others",
                 device_kind_name(named->kind), wanted, GROUP_MAX);
        wanted = GROUP_MAX;
    }
    for (; *count < wanted; (*count)++) {
        int index = named->count > 0 ? named->indices[*count] : *count;
        enum status status = device_open(&devices[*count], named->kind, index);
        if (status == STATUS_OK) continue;
        node_close_devices(devices, *count);
        return status;
    }
    return STATUS_OK;
}

void node_close_devices(struct device *const *devices, int count) {
    for (int i = 0; i < count; i++) {
        device_close(devices[i]);
    }
}

enum status node_check_batch(int count, int64_t B) {
    if (B % count == 0) return STATUS_OK;
    log_error("--batch %" PRId64 " cannot be shared evenly by %d devices: make it a multiple of %d",
              B, count, count);
    return STATUS_INVALID;
}

/* ---- a member's part ---- */

static float forward(const struct member *member, const struct model_batch *batch,
                     const struct model_gradient *gradient) {
    device_range_begin(member->device, gradient != NULL ? "forward" : "validation");
    float loss = model_forward(member->model, batch, gradient);
    device_range_end(member->device);
    return loss;
}

static void backward(const struct member *member, const struct model_batch *batch,
                     const struct model_gradient *gradient, model_ready_fn *ready, void *context) {
    device_range_begin(member->device, "backward");
    model_backward(member->model, batch, gradient, ready, context);
    device_range_end(member->device);
}

/* Member 0 asks the caller's gate, the others come after it. */
static bool wait_gate(void *context, uint64_t first, uint64_t count) {
    struct member *member = context;
    struct node *node = member->node;
    if (member->rank > 0) return team_follow_gate(node->team, ++member->gates);
    bool passed = node->gate.wait(node->gate.context, first, count);
    if (passed) {
        team_pass_gate(node->team);
    } else {
        team_fail(node->team);
    }
    return passed;
}

static void forward_member(struct member *member) {
    struct node *node = member->node;
    const struct model_gate gate = {.wait = wait_gate, .context = member};
    member->gates = 0;
    if (node->load && node->expect) model_expect_weights(member->model, node->weights, &gate);
    if (node->load && !node->expect) model_set_weights(member->model, node->weights);
    member->loss = forward(member, &member->batch, node->has_gradient ? &member->gradient : NULL);
}

static void run_member(struct member *member) {
    struct node *node = member->node;
    if (node->order == ORDER_FORWARD) {
        forward_member(member);
    } else if (node->order == ORDER_PART) {
        node->part(node->context, member->rank);
    } else {
        backward(member, &member->batch, &member->gradient, member->rank == 0 ? node->ready : NULL,
                 node->context);
    }
    if (model_status(member->model) == STATUS_OK) return;
    group_abort(node->group, member->rank);
    team_fail(node->team);
}

static void *drive_member(void *context) {
    struct member *member = context;
    struct node *node = member->node;
    if (node->threads > 0) threads_set(node->threads);
    for (uint64_t done = 0;; done++) {
        pthread_mutex_lock(&node->lock);
        while (node->orders == done)
            pthread_cond_wait(&node->changed, &node->lock);
        bool over = node->order == ORDER_END;
        pthread_mutex_unlock(&node->lock);
        if (over) return NULL;
        run_member(member);
        pthread_mutex_lock(&node->lock);
        if (--node->busy == 0) pthread_cond_broadcast(&node->changed);
        pthread_mutex_unlock(&node->lock);
    }
}

/* ---- what all do ---- */

static void give_order(struct node *node, enum order order) {
    pthread_mutex_lock(&node->lock);
    node->order = order;
    node->orders++;
    node->busy = node->started;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

/* All members make the pass, or their parts. A group ends every wait of its members in time. */
static void run_all(struct node *node, enum order order) {
    give_order(node, order);
    run_member(&node->members[0]);
    pthread_mutex_lock(&node->lock);
    while (node->busy > 0)
        pthread_cond_wait(&node->changed, &node->lock);
    pthread_mutex_unlock(&node->lock);
    for (int i = 0; i < node->count && node->status == STATUS_OK; i++)
        node->status = model_status(node->members[i].model);
}

static int64_t count_targets(const int32_t *targets, int64_t rows) {
    int64_t count = 0;
    for (int64_t n = 0; n < rows; n++)
        count += targets[n] >= 0;
    return count;
}

/* Sequences rank B / n .. of the batch. Where they are too few for all, a member computes the first
 * one for nothing, since it is needed to gather weights. Returns the targets of all. */
static int64_t share_out(struct node *node, const struct model_batch *batch) {
    int64_t all = 0;
    for (int i = 0; i < node->count; i++) {
        struct member *member = &node->members[i];
        int64_t first = batch->B * i / node->count, end = batch->B * (i + 1) / node->count;
        bool idle = end == first;
        member->batch = *batch;
        member->batch.B = idle ? 1 : end - first;
        member->batch.tokens = batch->tokens + (idle ? 0 : first) * batch->T;
        member->batch.targets = batch->targets + (idle ? 0 : first) * batch->T;
        /* As workers with so many sequences have it. */
        member->batch.dropout_step = batch->dropout_step + (uint64_t)(idle ? 0 : first);
        member->count = idle ? 0 : count_targets(member->batch.targets, member->batch.B * batch->T);
        all += member->count;
    }
    return all;
}

/* Each member's mean loss counts by its targets. */
static void share_gradient(struct node *node, const struct model_gradient *gradient, int64_t all) {
    node->has_gradient = gradient != NULL;
    for (int i = 0; i < node->count && gradient != NULL; i++) {
        struct member *member = &node->members[i];
        member->gradient = *gradient;
        /* Without targets the gradient is 0, whatever its scale, which must not be 0. */
        if (member->count > 0) {
            member->gradient.scale = gradient->scale * (double)member->count / (double)all;
        }
    }
}

float node_forward(struct node *node, const struct model_batch *batch,
                   const struct model_gradient *gradient) {
    if (node->count == 1) return forward(&node->members[0], batch, gradient);
    int64_t all = share_out(node, batch);
    share_gradient(node, gradient, all);
    team_begin(node->team);
    run_all(node, ORDER_FORWARD);
    node->load = false;
    double sum = 0;
    for (int i = 0; i < node->count; i++) {
        const struct member *member = &node->members[i];
        if (member->count > 0 || member->loss != member->loss)
            sum += (double)member->loss * (double)member->count;
    }
    return all > 0 ? (float)(sum / (double)all) : 0.0F;
}

void node_backward(struct node *node, const struct model_batch *batch,
                   const struct model_gradient *gradient, model_ready_fn *ready, void *context) {
    if (node->count == 1) {
        backward(&node->members[0], batch, gradient, ready, context);
        return;
    }
    node->ready = ready;
    node->context = context;
    run_all(node, ORDER_BACKWARD);
}

enum status node_each(struct node *node, node_part_fn *part, void *context) {
    node->part = part;
    node->context = context;
    run_all(node, ORDER_PART);
    return node->status;
}

float *node_device_weights(const struct node *node, int rank) {
    ASSERT_OP(rank, <, node->count);
    return model_device_weights(node->members[rank].model);
}

const float *node_device_gradient(const struct node *node, int rank) {
    ASSERT_OP(rank, <, node->count);
    return model_device_gradient(node->members[rank].model);
}

int node_owner(const struct node *node, uint64_t block) {
    return node->count > 1 ? team_owner(node->team, block) : 0;
}

const struct device_event *node_ready_event(const struct node *node, uint64_t block,
                                            uint64_t tensor) {
    return model_ready_event(node->members[node_owner(node, block)].model, tensor);
}

struct group *node_group(const struct node *node) {
    return node->group;
}

void node_set_weights(struct node *node, const float *weights) {
    node->weights = weights;
    node->load = true;
    node->expect = false;
    if (node->count == 1) model_set_weights(node->members[0].model, weights);
}

void node_expect_weights(struct node *node, const float *weights, const struct model_gate *gate) {
    node->weights = weights;
    node->load = true;
    node->expect = true;
    node->gate = *gate;
    if (node->count == 1) model_expect_weights(node->members[0].model, weights, gate);
}

enum status node_status(const struct node *node) {
    return node->count == 1 ? model_status(node->members[0].model) : node->status;
}

struct model *node_host_model(struct node *node) {
    return node->count == 1 && device_is_host(node->first) ? node->members[0].model : NULL;
}

/* ---- opening and closing ---- */

static enum status open_members(struct node *node, const struct model_shape *shape,
                                const struct plan *plan, const struct model_options *options,
                                struct device *const *devices) {
    for (int i = 0; i < node->count; i++) {
        struct member *member = &node->members[i];
        struct model_options own = *options;
        own.device = devices[i];
        own.B = (options->B + node->count - 1) / node->count;
        own.team = node->team;
        own.rank = i;
        *member = (struct member){.node = node, .device = devices[i], .rank = i};
        TRY(model_open(&member->model, shape, plan, &own));
    }
    return STATUS_OK;
}

static enum status start_threads(struct node *node) {
    for (int i = 1; i < node->count; i++) {
        struct member *member = &node->members[i];
        if (pthread_create(&member->thread, NULL, drive_member, member) != 0) {
            log_error("cannot start a thread for each of %d devices", node->count);
            return STATUS_MEMORY;
        }
        node->started++;
    }
    return STATUS_OK;
}

/* Each member's kernels get their share of the caller's threads. */
static void share_threads(struct node *node) {
    if (!device_is_host(node->first)) return;
    int threads = omp_get_max_threads() / node->count;
    node->threads = threads > 0 ? threads : 1;
    threads_set(node->threads);
}

enum status node_open(struct node **node, const struct model_shape *shape, const struct plan *plan,
                      const struct model_options *options, struct device *const *devices, int count,
                      int timeout_ms) {
    ASSERT(count >= 1 && count <= GROUP_MAX);
    struct node *made = memory_zeroed(1, sizeof(*made));
    made->count = count;
    made->first = devices[0];
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    enum status status = STATUS_OK;
    if (count > 1) {
        share_threads(made);
        status = group_open(&made->group, devices, count, timeout_ms);
        if (status == STATUS_OK) made->team = team_open(made->group, plan, timeout_ms);
    }
    if (status == STATUS_OK) status = open_members(made, shape, plan, options, devices);
    if (status == STATUS_OK) status = start_threads(made);
    *node = made;
    return status;
}

enum status node_close(struct node *node) {
    if (node == NULL) return STATUS_OK;
    give_order(node, ORDER_END);
    for (int i = 1; i <= node->started; i++)
        pthread_join(node->members[i].thread, NULL);
    for (int i = 0; i < node->count; i++)
        model_close(node->members[i].model);
    team_close(node->team);
    TRY(group_close(node->group));
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->lock);
    free(node);
    return STATUS_OK;
}
