#include "tests/sim_reference.h"

#include "base/memory.h"
#include "compression/cast.h"
#include "compression/decoder.h"
#include "compression/delta.h"
#include "compression/push_codec.h"
#include "kernels/optimizer.h"
#include "kernels/optimizer_state.h"
#include "proto/discipline.h"
#include "tests/test.h"

#define ALIGN 64 /* of each block's optimizer state, and of each of its parts */

struct reference {
    const struct job *job;
    const struct plan *plan;
    const struct data_stream *stream;
    struct discipline discipline;
    struct model *model;
    float *master, *grad, *sum; /* [value_count] */
    float *anchor;              /* [value_count] what workers have of the master */
    float *own;                 /* [workers][value_count] local modes */
    uint8_t *state;             /* of the servers' optimizer */
    uint8_t *own_state;         /* [workers] of the workers' */
    size_t *state_at;      /* [blocks + 1] where each block's is, in bytes; then, of them all */
    int64_t *updates;      /* [blocks] of the servers' */
    int64_t *own_updates;  /* [workers][blocks] */
    int64_t *tokens_since; /* [workers][fragments] */
    double weight;         /* of what is in the sum */
    int32_t *tokens, *targets;
    uint8_t *wire;              /* of any push */
    void *scratch;              /* of a decoder */
    struct push_codec **pushes; /* [workers + 1], the last the servers', of mean gradients */
};

static void *take(size_t count, size_t bytes) {
    return memory_zeroed(count, bytes);
}

/* Room for the two moments of each block. */
static void place_states(struct reference *r) {
    r->state_at = take((size_t)r->plan->block_count + 1, sizeof(size_t));
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        size_t moment = (size_t)r->plan->blocks[id].count * sizeof(float) + ALIGN;
        r->state_at[id + 1] = r->state_at[id] + 2 * (moment / ALIGN * ALIGN);
    }
}

static bool in_fragment(const struct plan_block *block, uint64_t fragment) {
    return block->fragment == fragment;
}

/* One block of the master -> to, as a pull does. A delta's replica moves by a step at each pull but
 * the first, which is `whole`. */
static void pull_block(struct reference *r, const struct plan_block *block, float *to, bool whole) {
    const float *from = r->master + block->offset;
    uint8_t codec = CODEC_F32;
    size_t count = (size_t)block->count;
    if (job_workers_step(r->job)) {
        memcpy(to, from, count * sizeof(float));
        return;
    }
    if (cast_find(r->job->pull, &codec)) {
        cast_encode(codec, from, count, r->wire);
        CHECK(decoder_set(codec, r->wire, cast_bytes(codec, count), to, count, NULL) == STATUS_OK);
        return;
    }
    CHECK(delta_find(r->job->pull, &codec));
    if (whole || block->fragment == PLAN_FROZEN || delta_steps_max(codec, count) == 0) {
        delta_rebase(from, to, count);
    } else {
        CHECK(delta_encode_step(codec, from, to, count, r->wire));
    }
}

/* All blocks, or a fragment's. `to` is as the last pull left it, if it was not the first. */
static void pull(struct reference *r, float *to, bool all, uint64_t fragment, bool first) {
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        if (all || in_fragment(block, fragment)) {
            pull_block(r, block, to + block->offset, first);
        }
    }
}

/* sum += decode(encode(grad)), block by block, as push number `report` (from 1) of a worker
 * does. */
static void push(struct reference *r, int64_t rank, int64_t report, uint64_t fragment,
                 double weight) {
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        struct encoder_result result;
        if (in_fragment(block, fragment)) {
            push_codec_encode(r->pushes[rank], id, (uint64_t)report, r->grad + block->offset,
                              r->wire, &result);
            CHECK(decoder_add(result.codec, r->wire, result.bytes, r->sum + block->offset,
                              block->count, r->scratch) == STATUS_OK);
        }
    }
    r->weight += weight;
}

/* min(1, clip / norm) of values that are `weight` times the gradient. */
static float clip_factor(const struct reference *r, const float *values, double weight) {
    double total = 0;
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        if (block->fragment != PLAN_FROZEN) {
            total += optimizer_sum_of_squares_ref(values + block->offset, (int64_t)block->count);
        }
    }
    double factor = r->job->clip > 0 ? r->job->clip / (sqrt(total) / weight + 1e-6) : 1;
    return factor < 1 ? (float)factor : 1.0F;
}

static struct optimizer optimizer_of(const struct job *job, const char *name) {
    struct optimizer optimizer = {.beta1 = (float)job->beta1,
                                  .beta2 = (float)job->beta2,
                                  .eps = (float)job->eps,
                                  .momentum = (float)job->momentum};
    CHECK(optimizer_find(name, &optimizer.kind));
    return optimizer;
}

/* `states`: of all blocks. */
static void step_block(const struct reference *r, const struct optimizer *optimizer,
                       const struct optimizer_update *update, const struct plan_block *block,
                       float *weights, uint8_t *states, const float *grad) {
    const struct optimizer_piece piece = {.rows = (int64_t)block->rows,
                                          .cols = (int64_t)block->cols};
    size_t first = (size_t)block->offset;
    optimizer_step_ref(optimizer, update, &piece, weights + first, states + r->state_at[block->id],
                       grad + first, NULL);
}

/* --push signsgd: where most say so, all do. */
static void vote(struct reference *r) {
    struct codec_spec spec;
    char why[256];
    CHECK(codec_parse(r->job->push, &spec, why, sizeof why));
    for (uint64_t i = 0; spec.codec == CODEC_SIGNSGD && i < r->plan->value_count; i++) {
        r->sum[i] = (float)r->weight * (float)((r->sum[i] > 0) - (r->sum[i] < 0));
    }
}

/* --optimizer worker:NAME: the sum becomes what all workers decode of its mean. */
static void send_mean(struct reference *r, int64_t report, float factor) {
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        float *mean = r->sum + block->offset;
        struct encoder_result result;
        if (block->fragment == PLAN_FROZEN) {
            continue;
        }
        for (uint64_t i = 0; i < block->count; i++) {
            mean[i] *= factor;
        }
        push_codec_encode(r->pushes[r->job->workers], id, (uint64_t)report, mean, r->wire, &result);
        CHECK(decoder_set(result.codec, r->wire, result.bytes, mean, (size_t)block->count,
                          r->scratch) == STATUS_OK);
    }
}

static void empty_sum(struct reference *r) {
    memset(r->sum, 0, (size_t)r->plan->value_count * sizeof(float));
    r->weight = 0;
}

/* The step of a round, the servers' or each worker's, on what is in the sum, which is then
 * empty. */
static void close_round(struct reference *r, int64_t place, uint64_t fragment) {
    const struct job *job = r->job;
    vote(r);
    bool local = r->discipline.local;
    bool nesterov = local && strncmp(job->mode, "diloco", 6) == 0;
    struct optimizer optimizer = optimizer_of(job, nesterov ? "nesterov"
                                                   : local  ? "sgd"
                                                            : job_optimizer(job));
    optimizer.freeze_v_after = job->freeze_v_after;
    if (local) {
        optimizer.momentum = nesterov ? (float)job->outer_momentum : 0;
    }
    float scale = (local ? 1 : clip_factor(r, r->sum, r->weight)) * (1.0F / (float)r->weight);
    if (job_workers_step(job)) {
        send_mean(r, place + 1, scale);
        scale = 1;
    }
    for (uint64_t id = 0; id < r->plan->block_count && r->weight > 0; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        double rate = local ? (nesterov ? 0.7 : 1) : job_learning_rate(job, place) * block->rate;
        const struct optimizer_update update = {
            .lr = (float)rate,
            .decay = local ? 0 : (float)(job->weight_decay * block->decay),
            .grad_scale = scale,
            .step = r->updates[id] + 1};
        if (in_fragment(block, fragment)) {
            r->updates[id]++;
            step_block(r, &optimizer, &update, block, r->master, r->state, r->sum);
        }
    }
    empty_sum(r);
}

/* A worker's gradient of the step at `place`, times its weight -> grad; returns the targets that
 * count. */
static int64_t compute(struct reference *r, int64_t place, int64_t rank, const float *weights) {
    const struct job *job = r->job;
    int64_t whole = job->accumulate * job->batch * job->seq_len;
    int64_t tokens = 0;
    model_set_weights(r->model, weights);
    for (int64_t micro = 0; micro < job->accumulate; micro++) {
        int64_t turn = (place * job->workers + rank) * job->accumulate + micro;
        int64_t count = 0;
        data_stream_read(r->stream, (uint64_t)(turn * job->batch), job->batch, r->tokens,
                         r->targets);
        for (int64_t i = 0; i < job->batch * job->seq_len; i++) {
            bool counts = job->pad_token < 0 || r->targets[i] != job->pad_token;
            r->targets[i] = counts ? r->targets[i] : -1;
            count += counts ? 1 : 0;
        }
        struct model_batch read = {
            .tokens = r->tokens, .targets = r->targets, .B = job->batch, .T = job->seq_len};
        struct model_gradient gradient = {.values = r->grad, .scale = 1, .add = micro > 0};
        gradient.scale = count > 0 ? (float)((double)count / (double)whole) : 1;
        (void)model_forward(r->model, &read, &gradient);
        model_backward(r->model, &read, &gradient, NULL, NULL);
        tokens += count;
    }
    return tokens;
}

static void sync_rounds(struct reference *r) {
    const struct job *job = r->job;
    double whole = (double)(job->accumulate * job->batch * job->seq_len);
    for (int64_t place = 0; place < job->steps; place++) {
        pull(r, r->anchor, true, 0, place == 0);
        for (int64_t rank = 0; rank < job->workers; rank++) {
            int64_t tokens = compute(r, place, rank, r->anchor);
            push(r, rank, place + 1, 0, (double)tokens / whole);
        }
        close_round(r, place, 0);
    }
}

/* ---- --optimizer worker:1bit-adam ---- */

/* In double; the same on all workers. */
struct onebit_adam {
    double *weights, *m, *v; /* [value_count] */
    double correction;       /* of v, which stays with it */
};

/* What travels instead of weight * gradient: weight * (beta1 m + (1 - beta1) clip gradient). */
static void make_moments(struct reference *r, const struct onebit_adam *adam, double weight) {
    double beta1 = r->job->beta1;
    double clip = (double)clip_factor(r, r->grad, weight);
    for (uint64_t i = 0; i < r->plan->value_count; i++) {
        double gradient = (double)r->grad[i];
        r->grad[i] = (float)(weight * beta1 * adam->m[i] + (1 - beta1) * clip * gradient);
    }
}

/* On the mean that came back, a gradient or the first moment. */
static void step_onebit_adam(const struct reference *r, struct onebit_adam *adam, int64_t place,
                             bool moments) {
    const struct job *job = r->job;
    double spread = 1 - pow(job->beta1, (double)(place + 1));
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        double lr = job_learning_rate(job, place) * block->rate;
        for (uint64_t i = block->offset; i < block->offset + block->count; i++) {
            double mean = (double)r->sum[i];
            if (block->fragment == PLAN_FROZEN) {
                continue;
            }
            adam->m[i] = moments ? mean : job->beta1 * adam->m[i] + (1 - job->beta1) * mean;
            if (!moments) {
                adam->v[i] = job->beta2 * adam->v[i] + (1 - job->beta2) * mean * mean;
            }
            adam->weights[i] *= 1 - lr * job->weight_decay * block->decay;
            adam->weights[i] -=
                lr * adam->m[i] / spread / (sqrt(adam->v[i]) / adam->correction + job->eps);
        }
    }
}

/* Tang et al., "1-bit Adam", ICML 2021, algorithm 1: AdamW on mean gradients first; then v stays,
 * and what is averaged are first moments. */
static void onebit_adam_rounds(struct reference *r) {
    const struct job *job = r->job;
    size_t count = (size_t)r->plan->value_count;
    double whole = (double)(job->accumulate * job->batch * job->seq_len);
    struct onebit_adam adam = {.weights = take(count, sizeof(double)),
                               .m = take(count, sizeof(double)),
                               .v = take(count, sizeof(double))};
    for (size_t i = 0; i < count; i++) {
        adam.weights[i] = (double)r->master[i];
    }
    for (int64_t place = 0; place < job->steps; place++) {
        bool moments = place >= job_momentum_after(job);
        for (int64_t rank = 0; rank < job->workers; rank++) {
            double weight = (double)compute(r, place, rank, r->master) / whole;
            if (moments) {
                make_moments(r, &adam, weight);
            }
            push(r, rank, place + 1, 0, weight);
        }
        float clip = moments ? 1 : clip_factor(r, r->sum, r->weight);
        if (!moments) {
            adam.correction = sqrt(1 - pow(job->beta2, (double)(place + 1)));
        }
        send_mean(r, place + 1, clip / (float)r->weight);
        step_onebit_adam(r, &adam, place, moments);
        empty_sum(r);
        for (size_t i = 0; i < count; i++) {
            r->master[i] = (float)adam.weights[i];
        }
    }
    free(adam.weights);
    free(adam.m);
    free(adam.v);
}

/* ---- local modes ---- */

static int64_t place_of(const struct reference *r, int64_t report) {
    int64_t place = report * discipline_interval(&r->discipline);
    return place < r->job->steps ? place : r->job->steps;
}

/* One step of the worker's own. */
static void own_step(struct reference *r, int64_t place, int64_t rank) {
    const struct job *job = r->job;
    uint64_t values = r->plan->value_count;
    uint64_t blocks = r->plan->block_count;
    double whole = (double)(job->accumulate * job->batch * job->seq_len);
    struct optimizer optimizer = optimizer_of(job, job->optimizer);
    float *own = r->own + (uint64_t)rank * values;
    int64_t tokens = compute(r, place, rank, own);
    double weight = (double)tokens / whole;
    for (int64_t f = 0; f < r->discipline.fragments; f++) {
        r->tokens_since[rank * r->discipline.fragments + f] += tokens;
    }
    float clip = clip_factor(r, r->grad, weight);
    for (uint64_t id = 0; id < blocks && tokens > 0; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        int64_t *updates = &r->own_updates[(uint64_t)rank * blocks + id];
        const struct optimizer_update update = {
            .lr = (float)(job_learning_rate(job, place) * block->rate),
            .decay = (float)(job->weight_decay * block->decay),
            .grad_scale = clip * (float)(1.0 / weight),
            .step = *updates + 1};
        if (block->fragment != PLAN_FROZEN) {
            (*updates)++;
            step_block(r, &optimizer, &update, block, own,
                       r->own_state + (size_t)rank * r->state_at[blocks], r->grad);
        }
    }
}

/* The last round's answer, of this fragment, into the worker's own weights. */
static void own_install(struct reference *r, int64_t rank, uint64_t fragment) {
    const struct job *job = r->job;
    uint64_t values = r->plan->value_count;
    float *own = r->own + (uint64_t)rank * values;
    uint8_t *states = r->own_state + (size_t)rank * r->state_at[r->plan->block_count];
    float mix = (float)job->mix;
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        if (!in_fragment(block, fragment)) {
            continue;
        }
        for (uint64_t i = block->offset; i < block->offset + block->count; i++) {
            float moved = mix * own[i] + (1.0F - mix) * r->anchor[i];
            own[i] = mix == 0 ? r->anchor[i] : moved;
        }
        if (strcmp(job->inner_state, "reset") == 0) {
            memset(states + r->state_at[id], 0, r->state_at[id + 1] - r->state_at[id]);
            r->own_updates[(uint64_t)rank * r->plan->block_count + id] = 0;
        }
    }
}

/* What came of the worker's steps since the fragment's last report: pushed. */
static void own_report(struct reference *r, int64_t report, int64_t rank, uint64_t fragment) {
    const struct job *job = r->job;
    int64_t fragments = r->discipline.fragments;
    int64_t before = report > fragments ? report - fragments : 0;
    int64_t usual =
        (place_of(r, report) - place_of(r, before)) * job->accumulate * job->batch * job->seq_len;
    int64_t *tokens = &r->tokens_since[rank * fragments + (int64_t)fragment];
    const float *own = r->own + (uint64_t)rank * r->plan->value_count;
    double weight = (double)*tokens / (double)usual;
    *tokens = 0;
    for (uint64_t i = 0; i < r->plan->value_count; i++) {
        r->grad[i] = (r->anchor[i] - own[i]) * (float)weight;
    }
    push(r, rank, report, fragment, weight);
}

static void local_rounds(struct reference *r) {
    const struct job *job = r->job;
    uint64_t fragments = (uint64_t)r->discipline.fragments;
    int64_t reports = discipline_reports(&r->discipline, job->steps);
    pull(r, r->anchor, true, 0, true);
    for (int64_t rank = 0; rank < job->workers; rank++) {
        memcpy(r->own + (uint64_t)rank * r->plan->value_count, r->anchor,
               (size_t)r->plan->value_count * sizeof(float));
    }
    for (int64_t report = 1; report <= reports; report++) {
        int64_t first = place_of(r, report - 1);
        int64_t count = place_of(r, report) - first;
        int64_t until = r->discipline.overlap < count ? r->discipline.overlap : count;
        uint64_t fragment = (uint64_t)(report - 1) % fragments;
        uint64_t last = (uint64_t)(report - 2 + (int64_t)fragments) % fragments;
        for (int64_t rank = 0; rank < job->workers; rank++) {
            for (int64_t k = 0; k <= count; k++) {
                if (k == until && report > 1) {
                    own_install(r, rank, last);
                }
                if (k < count) {
                    own_step(r, first + k, rank);
                }
            }
            own_report(r, report, rank, fragment);
        }
        close_round(r, 0, fragment);
        pull(r, r->anchor, false, fragment, false);
    }
}

void sim_reference(const struct job *job, const struct plan *plan, const struct model_shape *shape,
                   const struct data_stream *stream, float *weights) {
    size_t count = (size_t)plan->value_count;
    size_t batch = (size_t)(job->batch * job->seq_len);
    size_t workers = (size_t)job->workers;
    struct reference r = {.job = job,
                          .plan = plan,
                          .stream = stream,
                          .master = take(count, 4),
                          .grad = take(count, 4),
                          .sum = take(count, 4),
                          .anchor = take(count, 4),
                          .own = take(workers * count, 4),
                          .updates = take((size_t)plan->block_count, 8),
                          .own_updates = take(workers * (size_t)plan->block_count, 8),
                          .tokens_since = take(workers * (size_t)plan->fragment_count, 8),
                          .tokens = take(batch, 4),
                          .targets = take(batch, 4),
                          .wire = take((size_t)plan->largest_block + 64, 8),
                          .scratch = take(decoder_scratch_bytes((size_t)plan->largest_block), 1),
                          .pushes = take(workers + 1, sizeof(struct push_codec *))};
    char why[256];
    struct model_options options = {.B = job->batch, .T = job->seq_len, .training = true};
    for (size_t rank = 0; rank <= workers; rank++) {
        CHECK(push_codec_open(job, plan, (uint32_t)rank, PUSH_CODEC_ALL, &r.pushes[rank]) ==
              STATUS_OK);
    }
    place_states(&r);
    r.state = take(r.state_at[plan->block_count], 1);
    r.own_state = take(workers * r.state_at[plan->block_count], 1);
    CHECK(job_discipline(job, &r.discipline, why, sizeof why) == STATUS_OK);
    CHECK(discipline_needs_all(&r.discipline, job->workers));
    CHECK(model_open(&r.model, shape, plan, &options) == STATUS_OK);
    model_init_weights(shape, plan, (uint64_t)job->seed, r.master);
    if (r.discipline.local) {
        local_rounds(&r);
    } else if (job_momentum_after(job) > 0) {
        onebit_adam_rounds(&r);
    } else {
        sync_rounds(&r);
    }
    memcpy(weights, r.master, count * sizeof(float)); /* the saver's pull is exact */
    model_close(r.model);
    for (size_t rank = 0; rank <= workers; rank++) {
        push_codec_close(r.pushes[rank]);
    }
    void *memory[] = {r.master,    r.grad,     r.sum,         r.anchor,       r.own,    r.state,
                      r.own_state, r.updates,  r.own_updates, r.tokens_since, r.tokens, r.targets,
                      r.wire,      r.state_at, r.scratch,     r.pushes};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        free(memory[i]);
    }
}

float *sim_reference_of(const char *words, int64_t workers, const struct data *data,
                        uint64_t *values, uint64_t *blocks) {
    struct job job;
    struct options options;
    struct plan plan;
    struct model_shape shape;
    struct data_stream stream;
    char copy[1024];
    char why[256];
    char *rest = NULL;
    uint64_t count = 0;
    options_init(&options, job_table, job_table_count, &job);
    (void)snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        CHECK(options_set(&options, options_find(&options, word), value, ORIGIN_FLAG, why,
                          sizeof why) == STATUS_OK);
    }
    (void)job_expand_preset(&options, NULL, why, sizeof why);
    job.workers = workers;
    CHECK(model_shape_parse(job.model, job.vocab, job.seq_len, &shape, why, sizeof why) ==
          STATUS_OK);
    struct tensor *tensors = model_tensors(&shape, &count);
    struct plan_options plan_options = job_plan_options(&job, 1);
    CHECK(plan_build(&plan, tensors, count, &plan_options) == STATUS_OK);
    uint64_t held = data->count / 20;
    CHECK(data_stream_open(&stream, data, 0, data->count - held, job.seq_len, (uint64_t)job.seed) ==
          STATUS_OK);
    *values = plan.value_count;
    *blocks = 0;
    for (uint64_t id = 0; id < plan.block_count; id++) {
        *blocks += plan.blocks[id].fragment != PLAN_FROZEN ? 1 : 0;
    }
    float *weights = memory_zeroed((size_t)plan.value_count, sizeof(float));
    sim_reference(&job, &plan, &shape, &stream, weights);
    plan_free(&plan);
    free(tensors);
    return weights;
}
