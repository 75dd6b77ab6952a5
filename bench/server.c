/* bench_server: what a shard's work costs, each figure against another of the same run.
 *
 *   steps    AdamW with moments in f32, bf16 and int8 over memory much larger than the caches,
 *            against memcpy and against a pass that reads and writes what AdamW does (28 bytes a
 *            value) with next to no arithmetic; also with several threads, and against the AdamW
 *            of PyTorch or DeepSpeed on one thread
 *   fused    a push of int8, decoded, stepped and encoded as bf16, by the shard's own code in one
 *            pass, against AdamW alone, and against the three one after the other
 *   workers  a whole shard's time for a pushed block with 1 to 128 simulated workers
 *
 * Times are processor time of the thread at work, in turns; figures are medians over the turns.
 */
#include "base/assert.h"
#include "base/options.h"
#include "bench/cpu_time.h"
#include "bench/median.h"
#include "bench/peer.h"
#include "bench/server_rig.h"
#include "bench/server_step.h"
#include "compression/cast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench_server [--flag VALUE ...]\n"
    "\n"
    "Times a shard's work: AdamW against memory, decode and step and encode in one pass, and a\n"
    "pushed block's cost with 1 to 128 workers.\n"
    "\n"
    "examples:\n"
    "  bench_server\n"
    "  bench_server --part steps --peer torch\n"
    "  bench_server --part workers --blocks 8 --turns 3\n";

enum { TURNS_MAX = 99, BLOCK_VALUES = 1 << 18, WORKERS_MAX = 128, SIZES = 4, SETS = 32 };

static const uint32_t sizes[SIZES] = {1, 8, 32, WORKERS_MAX};

struct bench {
    char part[OPTION_TEXT_MAX], peer[OPTION_TEXT_MAX];
    char python[OPTION_TEXT_MAX], script[OPTION_TEXT_MAX];
    int64_t blocks, turns, threads;
};

static bool check_part(const char *text, char *why, size_t why_bytes) {
    (void)snprintf(why, why_bytes, "all, steps, fused, workers");
    return strcmp(text, "all") == 0 || strcmp(text, "steps") == 0 || strcmp(text, "fused") == 0 ||
           strcmp(text, "workers") == 0;
}

static bool check_peer(const char *text, char *why, size_t why_bytes) {
    (void)snprintf(why, why_bytes, "torch, deepspeed, or nothing");
    return text[0] == '\0' || strcmp(text, "torch") == 0 || strcmp(text, "deepspeed") == 0;
}

#define AT(field) offsetof(struct bench, field)
static const struct option table[] = {
    {"part", OPTION_TEXT, "all", 0, 0, "", "all, steps, fused or workers", false, 1, AT(part),
     check_part},
    {"blocks", OPTION_INT, "128", 1, 4096, "blocks",
     "of 2^18 values, which a thread steps (workers: an eighth of them)", false, 1, AT(blocks),
     NULL},
    {"turns", OPTION_INT, "7", 1, TURNS_MAX, "turns", "of each thing", false, 1, AT(turns), NULL},
    {"threads", OPTION_INT, "2", 1, 64, "threads", "that step at once, besides one alone", false, 1,
     AT(threads), NULL},
    {"peer", OPTION_TEXT, "", 0, 0, "",
     "what to measure AdamW in turns with: torch, deepspeed, or nothing", false, 1, AT(peer),
     check_peer},
    {"python", OPTION_TEXT, "python3", 0, 0, "file", "the Python that has the peer", false, 1,
     AT(python), NULL},
    {"script", OPTION_TEXT, RUBATO_BENCH_FOLDER "/peer_adamw.py", 0, 0, "file",
     "the peer's program", false, 1, AT(script), NULL},
};

static bool wants(const struct bench *bench, const char *part) {
    return strcmp(bench->part, "all") == 0 || strcmp(bench->part, part) == 0;
}

/* ---- fused ---- */

enum { ALONE, FUSED, APART, WAYS };

static const char *const way_names[WAYS] = {"AdamW alone", "decode, AdamW, encode in one pass",
                                            "the three one after the other"};

static void step_alone(struct shard *shard, struct shard_block *block) {
    const struct optimizer_update update = {1e-3F, 0.1F, 1.0F, (int64_t)block->updates + 1};
    struct optimizer_piece piece = update_piece(block->plan);
    optimizer_step(&shard->optimizer, &update, &piece, block->weights, block->state, block->sum,
                   NULL);
    block->updates++;
}

static void step_block(struct server_rig *rig, uint64_t at, int way) {
    struct shard *shard = &rig->shard;
    struct shard_block *block = &shard->blocks[at];
    const struct rig_payloads *payloads = rig->payloads;
    const uint8_t *wire = payloads->wire + at * payloads->bytes;
    struct decoder decoder;
    if (way == FUSED) {
        struct update update = {.grad_scale = 1, .rate = 1, .push = &decoder};
        ASSERT(decoder_open(&decoder, CODEC_INT8, wire, payloads->bytes, BLOCK_VALUES,
                            shard->scratch) == STATUS_OK);
        update_block(shard, block, &update);
    } else if (way == ALONE) {
        step_alone(shard, block);
    } else {
        ASSERT(decoder_set(CODEC_INT8, wire, payloads->bytes, block->sum, BLOCK_VALUES,
                           shard->scratch) == STATUS_OK);
        step_alone(shard, block);
        cast_encode(shard->pull, block->weights, BLOCK_VALUES, shard->buffers[block->buffer].bytes);
    }
}

static void measure_fused(const struct bench *bench) {
    struct server_rig rig;
    struct rig_payloads payloads;
    double seconds[WAYS][TURNS_MAX], ratios[WAYS][TURNS_MAX];
    rig_payloads_open(&payloads, 1, (uint64_t)bench->blocks);
    server_rig_open(&rig, "async", 1, &payloads);
    for (int64_t turn = -2; turn < bench->turns; turn++) { /* the first two are not counted */
        size_t at = turn < 0 ? 0 : (size_t)turn;
        for (int i = 0; i < WAYS; i++) {
            int way = (i + FUSED) % WAYS; /* so that each block has a buffer, and a gradient */
            double start = cpu_seconds();
            for (uint64_t block = 0; block < payloads.blocks; block++) {
                step_block(&rig, block, way);
            }
            seconds[way][at] = cpu_seconds() - start;
        }
        for (int way = 0; way < WAYS; way++) {
            ratios[way][at] = seconds[way][at] / seconds[ALONE][at];
        }
    }
    double values = (double)bench->blocks * BLOCK_VALUES;
    for (int way = 0; way < WAYS; way++) {
        printf("%-34s %6.2f ns a value, %.2f of AdamW alone\n", way_names[way],
               median(seconds[way], (size_t)bench->turns) / values * 1e9,
               median(ratios[way], (size_t)bench->turns));
    }
    server_rig_close(&rig);
    rig_payloads_close(&payloads);
}

/* ---- workers ---- */

/* As many reports for any number of workers: all of them one after the other, but that the first is
 * half as fast, so that the others come to wait for it where the mode makes them. */
static double report_all(struct server_rig *rig) {
    double seconds = 0;
    uint32_t workers = rig->shard.workers;
    uint64_t pushed = 0;
    for (uint64_t turn = 0; pushed < WORKERS_MAX; turn++) {
        uint64_t before = pushed;
        for (uint32_t rank = 0; rank < workers && pushed < WORKERS_MAX; rank++) {
            bool slow = rank == 0 && workers > 1 && turn % 2 == 1;
            if (!slow && server_rig_may_push(rig, rank)) {
                seconds += server_rig_report(rig, rank);
                pushed++;
            }
        }
        ASSERT(pushed > before || turn % 2 == 1); /* else all wait for ever */
    }
    return seconds;
}

static void measure_workers(const struct bench *bench, const char *mode) {
    struct server_rig *rigs = memory_zeroed(SIZES, sizeof *rigs);
    struct rig_payloads payloads;
    double seconds[SIZES][TURNS_MAX], ratios[SIZES][TURNS_MAX];
    uint64_t blocks = (uint64_t)(bench->blocks < 8 ? 1 : bench->blocks / 8);
    rig_payloads_open(&payloads, SETS, blocks);
    for (int i = 0; i < SIZES; i++) {
        server_rig_open(&rigs[i], mode, sizes[i], &payloads);
    }
    for (int64_t turn = -1; turn < bench->turns; turn++) { /* the first is not counted */
        size_t at = turn < 0 ? 0 : (size_t)turn;
        for (int i = 0; i < SIZES; i++) {
            seconds[i][at] = report_all(&rigs[i]);
            ratios[i][at] = seconds[i][at] / seconds[0][at];
        }
    }
    double pushes = (double)blocks * WORKERS_MAX;
    for (int i = 0; i < SIZES; i++) {
        printf("%-6s %4" PRIu32 " workers %8.1f us a pushed block, %.2f of 1 worker\n", mode,
               sizes[i], median(seconds[i], (size_t)bench->turns) / pushes * 1e6,
               median(ratios[i], (size_t)bench->turns));
        server_rig_close(&rigs[i]);
    }
    rig_payloads_close(&payloads);
    free(rigs);
}

/* ---- the peer ---- */

/* A turn is a step of ours, then one of theirs; the first is not counted. */
static enum status take_turns(const struct bench *bench, struct peer *peer, double *ours,
                              double *theirs) {
    struct server_step steps;
    enum status status = STATUS_OK;
    server_step_open(&steps, bench->blocks * BLOCK_VALUES);
    for (int64_t turn = -1; turn < bench->turns && status == STATUS_OK; turn++) {
        size_t at = turn < 0 ? 0 : (size_t)turn;
        ours[at] = server_step_make(&steps);
        status = peer_steps(peer, 1, &theirs[at]);
    }
    server_step_close(&steps);
    return status;
}

/* form: peer_adamw.py has them. */
static enum status measure_peer(const struct bench *bench, const char *form) {
    char values[32];
    double ours[TURNS_MAX] = {0}, theirs[TURNS_MAX] = {0}, ratios[TURNS_MAX];
    size_t turns = (size_t)bench->turns;
    struct peer peer;
    (void)snprintf(values, sizeof values, "%" PRId64, bench->blocks * BLOCK_VALUES);
    char *argv[] = {(char *)bench->python, (char *)bench->script, values, (char *)form, NULL};
    enum status status = peer_open(&peer, argv);
    if (status == STATUS_OK) status = take_turns(bench, &peer, ours, theirs);
    if (status == STATUS_OK) {
        double count = (double)bench->blocks * BLOCK_VALUES;
        for (size_t i = 0; i < turns; i++) {
            ratios[i] = theirs[i] / ours[i];
        }
        printf("%s: %.2f ns a value; adamw f32 %.2f ns, %.2f times as fast\n", peer.ready,
               median(theirs, turns) / count * 1e9, median(ours, turns) / count * 1e9,
               median(ratios, turns));
    }
    peer_close(&peer);
    return status;
}

static enum status measure_peers(const struct bench *bench) {
    if (bench->peer[0] == '\0') return STATUS_OK;
    if (strcmp(bench->peer, "deepspeed") == 0) return measure_peer(bench, "deepspeed");
    TRY(measure_peer(bench, "default"));
    return measure_peer(bench, "fused");
}

int main(int argc, char **argv) {
    struct bench bench;
    struct options options;
    options_init(&options, table, sizeof table / sizeof table[0], &bench);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&options, 1, usage, stdout);
        return EXIT_CODE_OK;
    }
    if (options_parse(&options, 1, argc, argv) != STATUS_OK) return EXIT_CODE_USAGE;
    enum status status = STATUS_OK;
    if (wants(&bench, "steps")) {
        server_step_measure(bench.blocks * BLOCK_VALUES, bench.turns, 1);
        if (bench.threads > 1)
            server_step_measure(bench.blocks * BLOCK_VALUES, bench.turns, bench.threads);
        status = measure_peers(&bench);
    }
    if (wants(&bench, "fused")) measure_fused(&bench);
    if (wants(&bench, "workers")) {
        measure_workers(&bench, "async");
        measure_workers(&bench, "ssp:3");
        measure_workers(&bench, "sync");
    }
    return (int)status_exit_code(status);
}
