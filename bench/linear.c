/* bench_linear: the products of GPT-2's layers by kernels/linear.h, against oneDNN's own.
 *
 * For each matrix of two models: packing, forward and both gradients, in turns with oneDNN's matmul
 * of the same sizes with every operand in the layout that it likes best (onednn_peak.h), which
 * neither packs nor rounds. Figures are medians over the turns; of the ratio, too, so that what
 * disturbs both sides of a turn falls out. "step" is all of a layer's work in one training step.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "bench/median.h"
#include "bench/onednn_peak.h"
#include "kernels/linear_backend.h"
#include "kernels/threads.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench_linear [--flag VALUE ...]\n"
    "\n"
    "Times the products of single layers and prints GFLOP/s, ours and oneDNN's. For figures that\n"
    "mean something, nothing else should run on the machine.\n"
    "\n"
    "examples:\n"
    "  bench_linear --threads 1 --rows 256\n"
    "  bench_linear --compute bf16 --backend packed --model small --rows 2048\n";

enum { TURNS_MAX = 99 };
enum work { LOAD, FORWARD, INPUT, WEIGHTS, STEP, WORKS };

struct bench {
    char model[OPTION_TEXT_MAX], compute[OPTION_TEXT_MAX], backend[OPTION_TEXT_MAX];
    int64_t rows, threads, turns;
};

static bool check_model(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "124M, small");
    return strcmp(text, "124M") == 0 || strcmp(text, "small") == 0;
}

static bool check_compute(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "f32, bf16");
    return strcmp(text, "f32") == 0 || strcmp(text, "bf16") == 0;
}

static bool check_backend(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "auto, sgemm, packed");
    return strcmp(text, "auto") == 0 || strcmp(text, "sgemm") == 0 || strcmp(text, "packed") == 0;
}

#define AT(field) offsetof(struct bench, field)
static const struct option table[] = {
    {"model", OPTION_TEXT, "124M", 0, 0, "", "whose layers: 124M, or small (6 layers of 384)",
     false, 1, AT(model), check_model},
    {"compute", OPTION_TEXT, "f32", 0, 0, "", "number type of the products: f32 or bf16", false, 1,
     AT(compute), check_compute},
    {"backend", OPTION_TEXT, "auto", 0, 0, "",
     "what multiplies: sgemm, packed (bf16 alone), or auto, as training has it", false, 1,
     AT(backend), check_backend},
    {"rows", OPTION_INT, "256", 1, 1 << 20, "rows", "tokens of a batch", false, 1, AT(rows), NULL},
    {"threads", OPTION_INT, "0", 0, 1024, "threads", "threads that compute; 0: all cores", false, 1,
     AT(threads), NULL},
    {"turns", OPTION_INT, "9", 1, TURNS_MAX, "turns", "turns of each side", false, 1, AT(turns),
     NULL},
};

struct layer {
    const char *name;
    int64_t in, out;
    bool out_in;
};

static const struct layer layers_124m[] = {{"qkv", 768, 2304, false},
                                           {"projection", 768, 768, false},
                                           {"fc", 768, 3072, false},
                                           {"fc projection", 3072, 768, false},
                                           {"head", 768, 50257, true}};
static const struct layer layers_small[] = {{"qkv", 384, 1152, false},
                                            {"projection", 384, 384, false},
                                            {"fc", 384, 1536, false},
                                            {"fc projection", 1536, 384, false},
                                            {"head", 384, 256, true}};
enum { LAYERS = 5 };

/* One entry a turn. */
struct figures {
    double ours[WORKS][TURNS_MAX], peak[WORKS][TURNS_MAX], ratio[WORKS][TURNS_MAX];
};

struct buffers {
    float *x, *dx, *y, *dy, *bias, *weights, *dweights;
};

static float *filled(int64_t count) {
    float *values = memory_zeroed((size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = 0.01F * (float)(i % 201 - 100);
    return values;
}

static double seconds_since(int64_t *mark_ns) {
    int64_t now_ns = clock_now_ns();
    double seconds = (double)(now_ns - *mark_ns) / (double)CLOCK_S;
    *mark_ns = now_ns;
    return seconds;
}

/* As a training step has it: all four, in this order. */
static void turn(struct linear *linear, const struct buffers *at, double ours[WORKS]) {
    int64_t rows = linear->shape.rows;
    int64_t mark_ns = clock_now_ns();
    linear_load(linear, at->weights);
    ours[LOAD] = seconds_since(&mark_ns);
    linear_forward(linear, at->x, at->bias, at->y, rows);
    ours[FORWARD] = seconds_since(&mark_ns);
    linear_backward_input(linear, at->dy, at->dx, false, rows);
    ours[INPUT] = seconds_since(&mark_ns);
    linear_backward_weights(linear, at->x, at->dy, at->dweights, NULL, false, rows);
    ours[WEIGHTS] = seconds_since(&mark_ns);
    ours[STEP] = ours[LOAD] + ours[FORWARD] + ours[INPUT] + ours[WEIGHTS];
}

static void measure(const struct bench *bench, struct linear *linear, struct figures *figures) {
    const struct linear_shape *shape = &linear->shape;
    const int64_t rows = shape->rows;
    const bool bf16 = shape->type == COMPUTE_BF16;
    const struct buffers at = {.x = filled(rows * shape->in),
                               .dx = filled(rows * shape->in),
                               .y = filled(rows * shape->out),
                               .dy = filled(rows * shape->out),
                               .bias = filled(shape->out),
                               .weights = filled(shape->in * shape->out),
                               .dweights = filled(shape->in * shape->out)};
    double ours[WORKS];
    double peak[WORKS] = {0};
    turn(linear, &at, ours); /* not counted */
    for (int64_t i = 0; i < bench->turns; i++) {
        turn(linear, &at, ours);
        peak[FORWARD] = onednn_peak_seconds(rows, shape->in, shape->out, bf16, 1);
        peak[INPUT] = onednn_peak_seconds(rows, shape->out, shape->in, bf16, 1);
        peak[WEIGHTS] = onednn_peak_seconds(shape->in, rows, shape->out, bf16, 1);
        peak[STEP] = peak[FORWARD] + peak[INPUT] + peak[WEIGHTS];
        for (int work = 0; work < WORKS; work++) {
            figures->ours[work][i] = ours[work];
            figures->peak[work][i] = peak[work];
            figures->ratio[work][i] = peak[work] / ours[work];
        }
    }
    float *all[] = {at.x, at.dx, at.y, at.dy, at.bias, at.weights, at.dweights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void print(const struct bench *bench, const struct layer *layer, const struct linear *linear,
                  struct figures *figures) {
    static const char *const names[] = {"load", "forward", "input", "weights", "step"};
    size_t turns = (size_t)bench->turns;
    double flops = 2.0 * (double)(bench->rows * layer->in) * (double)layer->out;
    printf("%s: %" PRId64 " rows, %" PRId64 " -> %" PRId64 ", %s by %s, %zu bytes\n", layer->name,
           bench->rows, layer->in, layer->out, bench->compute, linear->backend->name,
           linear_bytes(linear));
    for (int work = 0; work < WORKS; work++) {
        double ours = median(figures->ours[work], turns);
        double work_flops = work == STEP ? 3 * flops : flops;
        if (work == LOAD) {
            printf("  %-8s %9.3f ms\n", names[work], ours * 1e3);
            continue;
        }
        printf("  %-8s %9.3f ms %9.1f GFLOP/s, oneDNN %9.1f, ratio %.2f\n", names[work], ours * 1e3,
               work_flops / ours / 1e9, work_flops / median(figures->peak[work], turns) / 1e9,
               median(figures->ratio[work], turns));
    }
}

static enum status run(const struct bench *bench) {
    static struct figures figures; /* large */
    char library[32];
    const struct layer *layers = strcmp(bench->model, "small") == 0 ? layers_small : layers_124m;
    onednn_peak_name(library, sizeof library);
    printf("against %s; medians of %" PRId64 " turns\n", library, bench->turns);
    for (int i = 0; i < LAYERS; i++) {
        struct linear *linear = NULL;
        struct linear_shape shape = {.rows = bench->rows,
                                     .in = layers[i].in,
                                     .out = layers[i].out,
                                     .stride_x = layers[i].in,
                                     .stride_y = layers[i].out,
                                     .out_in = layers[i].out_in,
                                     .type = strcmp(bench->compute, "bf16") == 0 ? COMPUTE_BF16
                                                                                 : COMPUTE_F32,
                                     .training = true};
        enum status status =
            strcmp(bench->backend, "auto") == 0
                ? linear_open(&linear, &shape)
                : linear_open_backend(&linear, &shape,
                                      strcmp(bench->backend, "sgemm") == 0 ? &linear_sgemm
                                                                           : &linear_packed);
        if (status == STATUS_UNSUPPORTED)
            log_error("--backend %s does not do %s here", bench->backend, bench->compute);
        if (status != STATUS_OK) return status;
        measure(bench, linear, &figures);
        print(bench, &layers[i], linear, &figures);
        linear_close(linear);
    }
    return STATUS_OK;
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
    threads_set(bench.threads > 0 ? (int)bench.threads : threads_available());
    return (int)status_exit_code(run(&bench));
}
