/* bench_optimizer: a step of each server optimizer, against memcpy in the same run.
 *
 * Pieces of a model, one after the other by one thread, as a shard has them. GB/s are the bytes
 * that a step must read and write (weights and state twice, the gradient once) by its time;
 * memcpy's are those that it reads and writes, over the same number of bytes, in turns with the
 * step. Figures are medians over the turns; of the ratio, too. Muon's work is products: its GFLOP/s
 * count what the formulas need, without the halves that symmetry saves.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/options.h"
#include "bench/median.h"
#include "kernels/optimizer_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench_optimizer [--flag VALUE ...]\n"
    "\n"
    "Times the server optimizers and prints ns a value, GB/s, and the ratio to memcpy. For "
    "figures\n"
    "that mean something, nothing else should run on the machine.\n"
    "\n"
    "examples:\n"
    "  bench_optimizer                                  blocks that come from memory\n"
    "  bench_optimizer --pieces 1 --rows 64             one that stays in the cache\n"
    "  bench_optimizer --optimizer muon --rows 768 --cols 3072 --pieces 1\n";

enum { TURNS_MAX = 99 };

struct bench {
    char optimizer[OPTION_TEXT_MAX];
    int64_t rows, cols, pieces, turns;
};

static bool check_optimizer(const char *text, char *why, size_t why_bytes) {
    enum optimizer_kind kind;
    snprintf(why, why_bytes, "all, sgd, nesterov, adagrad, adamw, lion, lamb, adafactor, muon");
    return strcmp(text, "all") == 0 || optimizer_find(text, &kind);
}

#define AT(field) offsetof(struct bench, field)
static const struct option table[] = {
    {"optimizer", OPTION_TEXT, "all", 0, 0, "", "which optimizer, or all", false, 1, AT(optimizer),
     check_optimizer},
    {"rows", OPTION_INT, "512", 1, 1 << 16, "rows", "of a piece", false, 1, AT(rows), NULL},
    {"cols", OPTION_INT, "512", 1, 1 << 16, "columns", "of a piece", false, 1, AT(cols), NULL},
    {"pieces", OPTION_INT, "32", 1, 1 << 16, "pieces", "that a turn steps, each once", false, 1,
     AT(pieces), NULL},
    {"turns", OPTION_INT, "5", 1, TURNS_MAX, "turns", "of each side", false, 1, AT(turns), NULL},
};

static double seconds_since(int64_t start_ns) {
    return (double)(clock_now_ns() - start_ns) / (double)CLOCK_S;
}

/* What all pieces need, one piece behind the other. */
struct buffers {
    float *weights, *grad;
    uint8_t *state, *scratch, *from, *to;
    size_t state_bytes, copied; /* of a piece; of a memcpy */
};

static double step_seconds(const struct bench *bench, const struct optimizer *optimizer,
                           const struct buffers *at, int64_t step) {
    const struct optimizer_piece piece = {bench->rows, bench->cols, true};
    const struct optimizer_update update = {1e-3F, 0.1F, 1.0F, step};
    const int64_t count = bench->rows * bench->cols;
    int64_t start_ns = clock_now_ns();
    for (int64_t i = 0; i < bench->pieces; i++)
        optimizer_step(optimizer, &update, &piece, at->weights + i * count,
                       at->state + (size_t)i * at->state_bytes, at->grad + i * count, at->scratch);
    return seconds_since(start_ns);
}

/* Of the steps' products, for each piece: X X', A A, and A X, five times. */
static double muon_flops(const struct bench *bench) {
    double n = (double)(bench->rows < bench->cols ? bench->rows : bench->cols);
    double m = (double)(bench->rows < bench->cols ? bench->cols : bench->rows);
    return 5.0 * (2.0 * n * n * m * 2.0 + 2.0 * n * n * n) * (double)bench->pieces;
}

static void buffers_open(struct buffers *at, const struct bench *bench,
                         const struct optimizer *optimizer) {
    const struct optimizer_piece piece = {bench->rows, bench->cols, true};
    const size_t values = (size_t)(bench->rows * bench->cols * bench->pieces);
    at->state_bytes = optimizer_state_bytes(optimizer, &piece);
    at->weights = memory_zeroed(values, sizeof(float));
    at->grad = memory_zeroed(values, sizeof(float));
    at->state = memory_zeroed((size_t)bench->pieces + 1, at->state_bytes + 64);
    at->scratch = memory_zeroed(1, optimizer_scratch_bytes(optimizer, &piece) + 64);
    at->copied = (values * 12 + 2 * (size_t)bench->pieces * at->state_bytes) / 2;
    at->from = memory_zeroed(1, at->copied);
    at->to = memory_zeroed(1, at->copied);
    memset(at->from, 1, at->copied);
    for (size_t i = 0; i < values; i++) {
        at->weights[i] = 0.01F * (float)(i % 201) - 1.0F;
        at->grad[i] = 0.001F * (float)(i % 503) - 0.25F;
    }
}

static void buffers_close(const struct buffers *at) {
    void *all[] = {at->weights, at->grad, at->state, at->scratch, at->from, at->to};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void measure(const struct bench *bench, const struct optimizer *optimizer, const char *kind,
                    const char *type) {
    struct buffers at;
    double step[TURNS_MAX], copy[TURNS_MAX], ratio[TURNS_MAX];
    buffers_open(&at, bench, optimizer);
    step_seconds(bench, optimizer, &at, 1); /* not counted, nor the first memcpy */
    memcpy(at.to, at.from, at.copied);
    for (int64_t i = 0; i < bench->turns; i++) {
        step[i] = step_seconds(bench, optimizer, &at, i + 2);
        int64_t start_ns = clock_now_ns();
        memcpy(at.to, at.from, at.copied);
        __asm__ volatile("" : : "r"(at.to) : "memory"); /* not to be left out */
        copy[i] = seconds_since(start_ns);
        ratio[i] = copy[i] / step[i];
    }
    const double values = (double)(bench->rows * bench->cols * bench->pieces);
    const double bytes = 2.0 * (double)at.copied;
    const size_t turns = (size_t)bench->turns;
    const double seconds = median(step, turns);
    printf("%-9s %-4s %6.2f ns a value %7.2f GB/s, memcpy %6.2f, ratio %.2f", kind, type,
           seconds / values * 1e9, bytes / seconds / 1e9, bytes / median(copy, turns) / 1e9,
           median(ratio, turns));
    if (optimizer->kind == OPTIMIZER_MUON)
        printf(", %.1f GFLOP/s", muon_flops(bench) / seconds / 1e9);
    printf("\n");
    buffers_close(&at);
}

int main(int argc, char **argv) {
    static const char *const kinds[] = {"sgd",  "nesterov", "adagrad",   "adamw",
                                        "lion", "lamb",     "adafactor", "muon"};
    static const char *const types[] = {"f32", "bf16", "int8"};
    struct bench bench;
    struct options options;
    options_init(&options, table, sizeof table / sizeof table[0], &bench);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&options, 1, usage, stdout);
        return EXIT_CODE_OK;
    }
    if (options_parse(&options, 1, argc, argv) != STATUS_OK) return EXIT_CODE_USAGE;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (strcmp(bench.optimizer, "all") != 0 && strcmp(bench.optimizer, kinds[k]) != 0) continue;
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            struct optimizer optimizer = {
                .beta1 = 0.9F, .beta2 = 0.999F, .eps = 1e-8F, .momentum = 0.9F};
            if (!optimizer_find(kinds[k], &optimizer.kind) ||
                !moment_find(types[t], &optimizer.moments))
                return EXIT_CODE_INTERNAL;
            if (optimizer.kind == OPTIMIZER_ADAFACTOR && t > 0) continue; /* its own type always */
            measure(&bench, &optimizer, kinds[k], types[t]);
        }
    }
    return EXIT_CODE_OK;
}
