/* plan_table.c - `rubato plan`: what a job would hold and send, without holding or sending it.
 *
 * The tensors come from the model's shape, the blocks and shards from the plan that the job itself
 * would build, the slots from the functions that configure its channels; only the layout of a
 * shard's and a worker's memory (server/shard.h, worker/exchange.h) is counted again here.
 */
#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "compression/cast.h"
#include "compression/delta.h"
#include "compression/push_codec.h"
#include "kernels/optimizer_state.h"
#include "proto/frame.h"
#include "proto/job.h"
#include "proto/plan.h"
#include "server/shard.h"
#include "tools/subcommand.h"
#include "worker/data.h"
#include "worker/exchange.h"
#include "worker/hf_config.h"
#include "worker/inner.h"
#include "worker/local.h"
#include "worker/owner.h"
#include "worker/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

/* The vocabulary when neither --vocab nor --data says it, GPT-2's; and the answers that a shard can
 * hold beyond one a block (shard_init). */
enum { USUAL_VOCAB = 50257, SPARE_ANSWERS = 16 };

static const char usage[] =
    "usage: rubato plan [--flag VALUE ...]\n"
    "\n"
    "Prints what a job with these options would be: parameters, blocks and their balance over the\n"
    "shards, the memory of each server and worker, and the bytes of a step on the wire. Nothing\n"
    "of that is allocated, and no data is needed (without --vocab or --data, the vocabulary is\n"
    "taken to be GPT-2's). Takes the options of `rubato launch`; --shards is of each server. What\n"
    "a CUDA --device holds is asked of librubato_cuda.so, and no GPU is needed; --device cuda is\n"
    "counted as one device, and cuda:0,1 says how many share the batch.\n"
    "\n"
    "examples:\n"
    "  rubato plan --model gpt2:1.5B --servers 4 --shards 2 --workers 8 --batch 4 --seq-len 1024\n"
    "  rubato plan --model gpt2:124M --workers 4 --push int8 --vocab 50304\n"
    "  rubato plan --model gpt2:350M --seq-len 1024 --batch 8 --device cuda:0,1\n";

struct planned {
    const struct job *job;
    struct push_codec *push;
    uint8_t pull;               /* of whole blocks */
    uint8_t delta;              /* of steps; CODEC_F32: none */
    struct device device;       /* not open: its kind's tables */
    int devices;                /* of each worker */
    bool local;                 /* workers make steps of their own, */
    bool local_there;           /* on their device (worker/train.c) */
    struct optimizer optimizer; /* the servers' */
    struct model_shape shape;
    struct plan plan;
    /* Of one worker and step, headers included; of pushes, once their schedules are over. */
    uint64_t push_bytes, pull_bytes;
};

/* Bytes of one place: a worker's host, or a device of a worker. */
struct place_bytes {
    uint64_t moments;           /* of local modes, and of --optimizer worker:NAME */
    uint64_t weights, gradient; /* on the host, in a local mode, where steps are made */
    uint64_t local;             /* worker/local.h's anchor and delta */
    uint64_t pushes, slots;
    uint64_t model; /* worker/model.h; of a device, what is not said by itself */
};

/* Bytes of one server process. */
struct server_bytes {
    uint64_t blocks, weights, moments, sum, answers, slots;
    uint64_t push, pull; /* of one worker and step: its share of the traffic */
};

static enum status find_data_vocab(const struct job *job, int64_t *vocab) {
    struct data data = {0};
    *vocab = USUAL_VOCAB;
    if (job->vocab == 0 && job->data[0] != '\0') {
        TRY(data_open(&data, job->data));
        *vocab = data_default_vocab(&data);
        data_close(&data);
    }
    return STATUS_OK;
}

/* With a delta: of a worker that has the version before. With --optimizer worker:NAME: of the mean
 * gradient, by the pushes' codec. */
static size_t answer_bytes(const struct planned *planned, uint64_t id) {
    size_t values = (size_t)planned->plan.blocks[id].count;
    if (job_workers_step(planned->job)) return push_codec_usual_bytes(planned->push, id);
    bool steps = planned->delta != CODEC_F32 && delta_steps_max(planned->delta, values) > 0;
    return steps ? DELTA_HEAD + delta_step_bytes(planned->delta, values)
                 : cast_bytes(planned->pull, values);
}

/* What a shard keeps of a block for --pull delta-*. */
static uint64_t replica_bytes(const struct planned *planned, const struct plan_block *block) {
    size_t values = (size_t)block->count;
    if (planned->delta == CODEC_F32 || block->fragment == PLAN_FROZEN) return 0;
    return values * sizeof(float) +
           delta_steps_max(planned->delta, values) * delta_step_bytes(planned->delta, values);
}

/* How many there are where the job will run is not known here: of --device cuda, one is assumed. */
static enum status find_devices(struct planned *planned) {
    struct device_names names;
    ASSERT(device_names_parse(planned->job->device, &names));
    planned->devices = names.count > 0 ? names.count : 1;
    if (!device_describe(&planned->device, names.kind)) return STATUS_INVALID;
    return node_check_batch(planned->devices, planned->job->batch);
}

/* What steps on the servers; in local modes with moments of --outer's. */
static struct optimizer server_optimizer(const struct planned *planned) {
    const struct job *job = planned->job;
    const char *name = planned->local ? job_outer(job) : job_optimizer(job);
    bool average = strcmp(name, "average") == 0;
    double momentum = planned->local ? job->outer_momentum : job->momentum;
    struct optimizer optimizer = {.momentum = average ? 0 : (float)momentum};
    ASSERT(optimizer_find(average ? "sgd" : name, &optimizer.kind));
    ASSERT(moment_find(job->moments, &optimizer.moments));
    return optimizer;
}

static enum status find_mode(struct planned *planned) {
    struct discipline discipline;
    char why[256];
    if (job_discipline(planned->job, &discipline, why, sizeof why) != STATUS_OK) {
        log_error("%s", why);
        return STATUS_INVALID;
    }
    planned->local = discipline.local;
    planned->local_there = planned->local && !device_is_host(&planned->device) &&
                           inner_can(planned->job, &planned->device);
    planned->optimizer = server_optimizer(planned);
    return STATUS_OK;
}

static enum status build(struct planned *planned) {
    const struct job *job = planned->job;
    int64_t vocab = 0;
    uint64_t count = 0;
    TRY(find_devices(planned));
    TRY(find_mode(planned));
    TRY(find_data_vocab(job, &vocab));
    TRY(hf_config_of_job(job, vocab, &planned->shape));
    struct tensor *tensors = model_tensors(&planned->shape, &count);
    struct plan_options options = job_plan_options(job, (uint64_t)(job->servers * job->shards));
    enum status status = plan_build(&planned->plan, tensors, count, &options);
    free(tensors);
    TRY(status);
    TRY(push_codec_open(job, &planned->plan, 0, PUSH_CODEC_ALL, &planned->push));
    planned->pull = CODEC_BF16; // of whole blocks
    if (!delta_find(job->pull, &planned->delta) && !cast_find(job->pull, &planned->pull)) {
        return STATUS_INVALID;
    }
    for (uint64_t id = 0; id < planned->plan.block_count; id++) {
        planned->push_bytes += push_codec_usual_bytes(planned->push, id) + FRAME_BYTES;
        planned->pull_bytes += answer_bytes(planned, id) + FRAME_BYTES;
    }
    return STATUS_OK;
}

/* Of one block. */
static uint64_t server_moments(const struct planned *planned, const struct plan_block *block) {
    struct optimizer_piece piece = {
        .rows = (int64_t)block->rows, .cols = (int64_t)block->cols, .hidden = block->hidden};
    bool steps = !job_workers_step(planned->job) && block->fragment != PLAN_FROZEN;
    return steps ? optimizer_state_bytes(&planned->optimizer, &piece) : 0;
}

/* A shard's buffers of encoded answers, and with --optimizer worker:NAME what feedback holds
 * back. */
static uint64_t shard_answer_bytes(const struct planned *planned, uint64_t shard, uint64_t blocks,
                                   uint64_t largest) {
    const struct job *job = planned->job;
    uint64_t answer = cast_bytes(planned->pull, (size_t)largest);
    uint64_t held = 0;
    if (job_workers_step(job)) {
        struct push_codec *mean = NULL;
        ASSERT(push_codec_open(job, &planned->plan, (uint32_t)job->workers, shard, &mean) ==
               STATUS_OK); /* the worker's is open */
        answer = 0;
        for (uint64_t id = 0; id < planned->plan.block_count; id++) {
            uint64_t bytes = push_codec_bound(mean, id);
            answer = bytes > answer ? bytes : answer;
        }
        held = push_codec_memory(mean);
        push_codec_close(mean);
    }
    return held + (blocks + SPARE_ANSWERS) * answer;
}

/* Shards are numbered through the servers: server i's are i * K .. i * K + K - 1. */
static struct server_bytes count_server(const struct planned *planned, uint64_t server) {
    const struct job *job = planned->job;
    struct server_bytes bytes = {0};
    uint64_t first = server * (uint64_t)job->shards;
    for (uint64_t shard = first; shard < first + (uint64_t)job->shards; shard++) {
        struct channel_config channel;
        uint64_t blocks = 0;
        uint64_t largest = 0;
        for (uint64_t id = 0; id < planned->plan.block_count; id++) {
            const struct plan_block *block = &planned->plan.blocks[id];
            if (block->shard != shard) continue;
            blocks++;
            bytes.weights += 4 * block->count;
            bytes.moments += server_moments(planned, block);
            bytes.push += push_codec_usual_bytes(planned->push, id) + FRAME_BYTES;
            bytes.pull += answer_bytes(planned, id) + FRAME_BYTES;
            bytes.answers += replica_bytes(planned, block);
            largest = block->count > largest ? block->count : largest;
        }
        shard_channel_config(job, &planned->plan, shard, &channel);
        bytes.blocks += blocks;
        bytes.answers += shard_answer_bytes(planned, shard, blocks, largest);
        bytes.slots += (uint64_t)channel.slots * channel.slot_bytes;
    }
    bytes.sum = bytes.weights;
    return bytes;
}

static void print_servers(const struct planned *planned) {
    const struct job *job = planned->job;
    printf("\n%-18s %8s %10s %10s %10s %10s %10s %10s\n", "MiB of each server", "blocks", "weights",
           "moments", "sum", "answers", "slots", "total");
    for (uint64_t i = 0; i < (uint64_t)job->servers; i++) {
        struct server_bytes bytes = count_server(planned, i);
        uint64_t total = bytes.weights + bytes.moments + bytes.sum + bytes.answers + bytes.slots;
        printf("server %-11" PRIu64 " %8" PRIu64 " %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", i,
               bytes.blocks, (double)bytes.weights / MIB, (double)bytes.moments / MIB,
               (double)bytes.sum / MIB, (double)bytes.answers / MIB, (double)bytes.slots / MIB,
               (double)total / MIB);
    }
}

/* The optimizer's state of a worker that steps, or of a device `rank` of it. */
static uint64_t worker_moments(const struct planned *planned, const uint8_t *owners, int rank) {
    uint64_t bytes = 0;
    for (uint64_t id = 0; id < planned->plan.block_count; id++) {
        if (owner_is(owners, id, rank)) {
            bytes += arena_need(inner_state_bytes(planned->job, &planned->plan.blocks[id]));
        }
    }
    return bytes;
}

/* What pushes and local steps take of the device that has most of it; 0 where the host does them
 * (worker/train.c). */
static void count_own(const struct planned *planned, struct place_bytes *bytes) {
    uint8_t *owners = memory_zeroed((size_t)planned->plan.block_count, sizeof *owners);
    bool encodes = !device_is_host(&planned->device) && planned->local == planned->local_there &&
                   job_momentum_after(planned->job) == 0 && !planned->job->host_encode;
    owner_assign(&planned->plan, planned->devices, owners);
    for (int rank = 0; rank < planned->devices; rank++) {
        struct place_bytes own = {0};
        if (encodes) {
            own.pushes = push_codec_device_bytes(planned->push, &planned->device, rank, owners);
        }
        if (planned->local_there) {
            own.local = local_device_bytes(&planned->plan, owners, rank);
            own.moments = worker_moments(planned, owners, rank);
        }
        if (own.pushes + own.local + own.moments > bytes->pushes + bytes->local + bytes->moments) {
            bytes->pushes = own.pushes;
            bytes->local = own.local;
            bytes->moments = own.moments;
        }
    }
    free(owners);
}

/* Each device has a share of the batch, and copies of weights and gradient; members on the host, of
 * whom there are several, likewise. */
static struct place_bytes count_device(const struct planned *planned) {
    struct model_options options;
    struct place_bytes bytes = {0};
    uint64_t vector = sizeof(float) * planned->plan.value_count;
    trainer_model_options(planned->job, &options);
    options.B /= planned->devices;
    options.device = (struct device *)&planned->device;
    bytes.model = model_bytes(&planned->shape, &options);
    if (device_is_host(options.device) && planned->devices == 1) {
        return bytes;
    }
    bytes.weights = vector;
    bytes.gradient = planned->job->accumulate_apart ? 2 * vector : vector;
    bytes.model += model_copies_bytes(planned->plan.value_count, &options) - 2 * vector;
    count_own(planned, &bytes);
    return bytes;
}

static struct place_bytes count_host(const struct planned *planned) {
    struct place_bytes bytes = {0};
    struct channel_config channel;
    uint64_t vector = sizeof(float) * planned->plan.value_count;
    bool steps = job_workers_step(planned->job) || planned->local;
    bytes.weights = planned->local_there ? 0 : vector;
    bytes.gradient = bytes.weights;
    if (planned->job->accumulate_apart && device_is_host(&planned->device)) {
        bytes.gradient += vector; /* a device has it itself */
    }
    bytes.local = planned->local ? 2 * vector : 0;
    bytes.moments = steps && !planned->local_there ? worker_moments(planned, NULL, 0) : 0;
    bytes.pushes = push_codec_memory(planned->push);
    for (uint64_t id = 0; id < planned->plan.block_count; id++) {
        bytes.pushes += push_codec_bound(planned->push, id);
    }
    exchange_channel_config(&planned->plan, &channel);
    bytes.slots = (uint64_t)channel.slots * channel.slot_bytes;
    return bytes;
}

static void print_place(const char *name, const struct place_bytes *bytes) {
    const uint64_t parts[] = {bytes->moments, bytes->weights, bytes->gradient, bytes->local,
                              bytes->pushes,  bytes->slots,   bytes->model};
    uint64_t total = 0;
    printf("%-18s", name);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        printf(i == 0 ? " %8.1f" : " %10.1f", (double)parts[i] / MIB);
        total += parts[i];
    }
    printf(" %10.1f\n", (double)total / MIB);
}

static void print_worker(const struct planned *planned) {
    struct place_bytes host = count_host(planned);
    struct place_bytes device = count_device(planned);
    printf("\n%-18s %8s %10s %10s %10s %10s %10s %10s %10s\n", "MiB of each worker", "moments",
           "weights", "gradient", "local", "pushes", "slots", "model", "total");
    if (device_is_host(&planned->device)) {
        host.model = (device.weights + device.gradient + device.model) * (uint64_t)planned->devices;
        print_place("worker", &host);
        return;
    }
    print_place("worker's host", &host);
    print_place(planned->devices > 1 ? "each of its devices" : "its device", &device);
    printf("On a device there come cuBLAS's workspace (32 MiB, or 8 on chips before Hopper), CUDA\n"
           "itself, and, where UCX sends from there, the payloads of pushes.\n");
}

/* Bits of one direction over the line's rate. */
static void print_seconds(double mib) {
    static const double gigabits[] = {1, 10, 25, 100};
    for (size_t i = 0; i < sizeof gigabits / sizeof gigabits[0]; i++) {
        printf(" %9.3f", mib * MIB * 8 / (gigabits[i] * 1e9));
    }
    printf("\n");
}

static void print_wire(const struct planned *planned) {
    const struct job *job = planned->job;
    double push = (double)planned->push_bytes / MIB;
    double pull = (double)planned->pull_bytes / MIB;
    double most = 0; /* of any server, in the fuller direction */
    double values = 4.0 * (double)planned->plan.value_count / MIB;
    for (uint64_t i = 0; i < (uint64_t)job->servers; i++) {
        struct server_bytes bytes = count_server(planned, i);
        uint64_t fuller = bytes.push > bytes.pull ? bytes.push : bytes.pull;
        double all = (double)fuller * (double)job->workers / MIB;
        most = all > most ? all : most;
    }
    printf("\n%-18s %10s %10s   seconds of the fuller direction at 1, 10, 25, 100 Gb/s\n",
           "MiB of a step", "push", "pull");
    printf("%-18s %10.1f %10.1f  ", "worker", push, pull);
    print_seconds(push > pull ? push : pull);
    printf("%-18s %10s %10s  ", "busiest server", "", "");
    print_seconds(most);
    printf("%-18s %10.1f %10.1f\n", "all workers", push * (double)job->workers,
           pull * (double)job->workers);
    printf("%-18s %9.2fx %9.2fx\n", "f32 over wire", values / push, values / pull);
}

static void print_job(const struct planned *planned) {
    const struct job *job = planned->job;
    const struct model_shape *shape = &planned->shape;
    bool assumed = job->vocab == 0 && job->data[0] == '\0';
    int64_t tokens = job_step_tokens(job);
    printf("model   %s: %" PRId64 " layers, %" PRId64 " channels, %" PRId64 " heads\n", job->model,
           shape->layers, shape->channels, shape->heads);
    printf("tokens  vocabulary %" PRId64 "%s; %" PRId64 " a step and worker, %" PRId64
           " of all workers\n",
           shape->vocab, assumed ? " (assumed)" : "", tokens, tokens * job->workers);
    plan_print(&planned->plan, stdout);
}

static int plan_table_run(int argc, char **argv) {
    static struct job job; /* large */
    static struct options options;
    char why[256];
    options_init(&options, job_table, job_table_count, &job);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&options, JOB_LAUNCH, usage, stdout);
        return EXIT_CODE_OK;
    }
    if (options_parse(&options, JOB_LAUNCH, argc, argv) != STATUS_OK) {
        return EXIT_CODE_USAGE;
    }
    if (job_expand_preset(&options, NULL, why, sizeof why)) {
        log_info("%s", why);
    }
    if (job_check(&job, why, sizeof why) != STATUS_OK) {
        log_error("%s", why);
        return EXIT_CODE_USAGE;
    }
    struct planned planned = {.job = &job};
    enum status status = build(&planned);
    if (status == STATUS_OK) {
        print_job(&planned);
        print_servers(&planned);
        print_worker(&planned);
        print_wire(&planned);
    }
    push_codec_close(planned.push);
    plan_free(&planned.plan);
    return status == STATUS_INVALID ? EXIT_CODE_USAGE : (int)status_exit_code(status);
}

const struct subcommand plan_table_subcommand = {
    .name = "plan",
    .summary = "print the memory and traffic that a job would need",
    .run = plan_table_run,
};
