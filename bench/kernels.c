/* bench_kernels: how fast a device (kernels/device.h) runs each of a model's operations, against
 * what the same device reaches in the same run: its copy for those that are bound by memory, its
 * largest product for those that are bound by arithmetic.
 *
 * Bytes are those that an operation must move: each array that it reads or writes, once. FLOPs of
 * attention are those below the diagonal. An operation is queued until about 20 ms of work are
 * there, then waited for; figures are medians of the turns, in which all operations take part.
 */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/options.h"
#include "base/random.h"
#include "bench/median.h"
#include "kernels/compute.h"
#include "kernels/threads.h"
#include "proto/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: bench_kernels [--flag VALUE ...]\n"
    "\n"
    "Times a model's operations one by one on a device, and compares them with the device's copy\n"
    "and matrix product.\n"
    "\n"
    "examples:\n"
    "  bench_kernels --device cuda:0 --json kernels.jsonl\n"
    "  bench_kernels --device cpu --batch 1 --seq-len 256 --channels 256 --heads 4 --square 512\n";

enum { TURNS_MAX = 99, TIMED_MAX = 32 };

struct bench {
    char device[OPTION_TEXT_MAX], json[OPTION_TEXT_MAX];
    int64_t batch, seq_len, channels, heads, vocab, square, turns, threads;
};

static bool check_device(const char *text, char *why, size_t why_bytes) {
    enum device_kind kind;
    int index;
    snprintf(why, why_bytes, "cpu, cuda:N");
    return device_name_parse(text, &kind, &index);
}

#define AT(field) offsetof(struct bench, field)
static const struct option table[] = {
    {"device", OPTION_TEXT, "cpu", 0, 0, "", "what computes: cpu or cuda:N", false, 1, AT(device),
     check_device},
    {"batch", OPTION_INT, "8", 1, 4096, "sequences", "sequences of a step", false, 1, AT(batch),
     NULL},
    {"seq-len", OPTION_INT, "1024", 1, 65536, "tokens", "length of a sequence", false, 1,
     AT(seq_len), NULL},
    {"channels", OPTION_INT, "768", 2, 65536, "", "of the model; its MLP has four times as many",
     false, 1, AT(channels), NULL},
    {"heads", OPTION_INT, "12", 1, 1024, "", "of attention; they divide channels", false, 1,
     AT(heads), NULL},
    {"vocab", OPTION_INT, "50257", 2, 1048576, "tokens", "size of the vocabulary", false, 1,
     AT(vocab), NULL},
    {"square", OPTION_INT, "4096", 16, 32768, "", "rows and columns of the largest product", false,
     1, AT(square), NULL},
    {"turns", OPTION_INT, "5", 1, TURNS_MAX, "turns", "turns of each operation", false, 1,
     AT(turns), NULL},
    {"threads", OPTION_INT, "0", 0, 1024, "threads", "of the host's kernels; 0: all cores", false,
     1, AT(threads), NULL},
    {"json", OPTION_TEXT, "", 0, 0, "file", "writes a line for each operation there, too", false, 1,
     AT(json), NULL},
};

/* Everything that operations work on. Wide arrays are [N, 4 C], rows of four parts. */
struct rig {
    const struct bench *bench;
    struct device *device;
    const struct compute_ops *ops;
    int64_t B, T, C, N, I, V, heads, logit_rows;
    float *wide[4], *narrow[4], *vectors[4], *embeddings, *embedding_grad, *logits, *scratch;
    float *square[3];
    int32_t *tokens;
    struct linear *products[2], *squares[2]; /* f32, bf16 */
    struct attention_shape attention;
};

struct timed {
    const char *name;
    double bytes, flops; /* of a call; one of them is 0 */
    void (*run)(const struct rig *rig);
    double turns[TURNS_MAX]; /* seconds of a call */
};

/* ---- the operations ---- */

static void run_copy(const struct rig *rig) {
    device_copy(rig->device, DEVICE_COMPUTE, rig->wide[1], rig->wide[0],
                (size_t)(rig->N * rig->I) * sizeof(float), DEVICE_WITHIN);
}

static void run_square(const struct rig *rig, int type) {
    rig->ops->linear_forward(rig->squares[type], rig->square[0], NULL, rig->square[1],
                             rig->bench->square);
}
static void run_square_f32(const struct rig *rig) {
    run_square(rig, 0);
}
static void run_square_bf16(const struct rig *rig) {
    run_square(rig, 1);
}

static void run_embedding(const struct rig *rig) {
    rig->ops->embedding_forward(rig->device, rig->tokens, rig->embeddings, NULL, rig->narrow[0],
                                rig->B, rig->T, rig->C);
}
static void run_embedding_backward(const struct rig *rig) {
    const struct embedding_gradients gradients = {.dwte = rig->embedding_grad,
                                                  .scratch = rig->scratch};
    rig->ops->embedding_backward_add(rig->device, rig->tokens, rig->narrow[0], &gradients, rig->B,
                                     rig->T, rig->C);
}

static struct norm_result norm_result_of(const struct rig *rig) {
    return (struct norm_result){rig->narrow[3], rig->vectors[2], rig->vectors[3]};
}
static void run_norm(const struct rig *rig) {
    const struct residual residual = {rig->narrow[0], rig->narrow[1], rig->narrow[2]};
    const struct norm_result result = norm_result_of(rig);
    rig->ops->norm_forward(rig->device, &residual, rig->vectors[0], rig->vectors[1], &result,
                           rig->N, rig->C, 1e-5F);
}
static void run_norm_backward(const struct rig *rig) {
    const struct norm_saved saved = {rig->narrow[2], rig->vectors[2], rig->vectors[3],
                                     rig->vectors[0]};
    const struct norm_gradients gradients = {rig->narrow[1], rig->embedding_grad,
                                             rig->embedding_grad + rig->C, rig->scratch};
    rig->ops->norm_backward_add(rig->device, &saved, rig->narrow[0], &gradients, rig->N, rig->C);
}
static void run_rms_norm(const struct rig *rig) {
    const struct residual residual = {rig->narrow[0], rig->narrow[1], rig->narrow[2]};
    rig->ops->rms_norm_forward(rig->device, &residual, rig->vectors[0], rig->narrow[3],
                               rig->vectors[3], rig->N, rig->C, 1e-5F);
}

static struct rope_shape rope_of(const struct rig *rig) {
    return (struct rope_shape){.B = rig->B,
                               .T = rig->T,
                               .heads = rig->heads,
                               .kv_heads = rig->heads,
                               .head_size = rig->C / rig->heads,
                               .theta = 10000.0};
}
static void run_rope(const struct rig *rig) {
    const struct rope_shape shape = rope_of(rig);
    rig->ops->rope_forward(rig->device, &shape, rig->wide[2]);
}

static void run_gelu(const struct rig *rig) {
    rig->ops->gelu_bias_forward(rig->device, rig->wide[0], rig->wide[3], rig->wide[1], rig->N,
                                rig->I);
}
static void run_gelu_backward(const struct rig *rig) {
    rig->ops->gelu_bias_backward(rig->device, rig->wide[0], rig->wide[3], rig->wide[2],
                                 rig->wide[1], rig->N, rig->I);
}
static void run_swiglu(const struct rig *rig) {
    rig->ops->swiglu_forward(rig->device, rig->wide[0], rig->wide[1], rig->N, rig->I / 2);
}
static void run_dropout(const struct rig *rig) {
    const struct dropout dropout = dropout_make(0.1F, 1, 1, 0, DROPOUT_MLP);
    rig->ops->dropout_rows(rig->device, &dropout, rig->narrow[0], rig->narrow[3], rig->N, rig->C);
}
static void run_cross_entropy(const struct rig *rig) {
    rig->ops->cross_entropy(rig->device, rig->logits, rig->tokens, rig->vectors[2], rig->logit_rows,
                            rig->V, 1e-3F);
}

/* narrow[3] is y, vectors[3] the log-sum-exp, which has as many values as narrow[2]. */
static void run_attention(const struct rig *rig) {
    rig->ops->attention_forward(rig->device, &rig->attention, rig->wide[2], rig->narrow[2],
                                rig->narrow[3], rig->scratch);
}
static void run_attention_backward(const struct rig *rig) {
    const struct attention_saved saved = {rig->wide[2], rig->narrow[3], rig->narrow[2]};
    rig->ops->attention_backward(rig->device, &rig->attention, &saved, rig->narrow[0], rig->wide[1],
                                 rig->scratch);
}

static void run_product(const struct rig *rig, int type) {
    rig->ops->linear_forward(rig->products[type], rig->narrow[0], NULL, rig->wide[1], rig->N);
}
static void run_product_f32(const struct rig *rig) {
    run_product(rig, 0);
}
static void run_product_bf16(const struct rig *rig) {
    run_product(rig, 1);
}
static void run_product_backward(const struct rig *rig, int type) {
    rig->ops->linear_backward_input(rig->products[type], rig->wide[1], rig->narrow[3], false,
                                    rig->N);
    rig->ops->linear_backward_weights(rig->products[type], rig->narrow[0], rig->wide[1],
                                      rig->embedding_grad, NULL, false, rig->N);
}
static void run_product_backward_f32(const struct rig *rig) {
    run_product_backward(rig, 0);
}
static void run_product_backward_bf16(const struct rig *rig) {
    run_product_backward(rig, 1);
}

/* The first three are what the others are compared with. */
enum { COPY, SQUARE_F32, SQUARE_BF16 };
static size_t list_timed(const struct rig *rig, struct timed *list) {
    double NC = (double)(rig->N * rig->C), NI = (double)(rig->N * rig->I), f = sizeof(float);
    double square = (double)rig->bench->square, LV = (double)(rig->logit_rows * rig->V);
    double product = 2 * NC * (double)rig->I, scores = NC * (double)rig->T;
    const struct timed all[] = {
        [COPY] = {"copy", 2 * NI * f, 0, run_copy, {0}},
        [SQUARE_F32] =
            {"largest product, f32", 0, 2 * square * square * square, run_square_f32, {0}},
        [SQUARE_BF16] =
            {"largest product, bf16", 0, 2 * square * square * square, run_square_bf16, {0}},
        {"embedding", 2 * NC * f, 0, run_embedding, {0}},
        {"embedding, backward", 3 * NC * f, 0, run_embedding_backward, {0}},
        {"residual and norm", 4 * NC * f, 0, run_norm, {0}},
        {"norm, backward", 4 * NC * f, 0, run_norm_backward, {0}},
        {"residual and RMS norm", 4 * NC * f, 0, run_rms_norm, {0}},
        {"RoPE", 4 * NC * f, 0, run_rope, {0}},
        {"bias and GELU", 2 * NI * f, 0, run_gelu, {0}},
        {"bias and GELU, backward", 3 * NI * f, 0, run_gelu_backward, {0}},
        {"SwiGLU", 1.5 * NI * f, 0, run_swiglu, {0}},
        {"dropout", 2 * NC * f, 0, run_dropout, {0}},
        {"cross entropy", 2 * LV * f, 0, run_cross_entropy, {0}},
        {"attention", 0, 2 * scores, run_attention, {0}},
        {"attention, backward", 0, 5 * scores, run_attention_backward, {0}},
        {"product, f32", 0, product, run_product_f32, {0}},
        {"product, f32, backward", 0, 2 * product, run_product_backward_f32, {0}},
        {"product, bf16", 0, product, run_product_bf16, {0}},
        {"product, bf16, backward", 0, 2 * product, run_product_backward_bf16, {0}},
    };
    memcpy(list, all, sizeof all);
    return sizeof all / sizeof all[0];
}

/* ---- the rig ---- */

/* Values of variance 1/4 on the device; NULL: no memory, logged. */
static float *take(struct device *device, int64_t count) {
    float *memory = device_take(device, (size_t)count * sizeof(float));
    float *host = malloc((size_t)count * sizeof(float));
    if (memory != NULL && host != NULL) {
        uint32_t state = 1;
        for (int64_t i = 0; i < count; i++) {
            state = state * 1664525U + 1013904223U;
            host[i] = (float)(state >> 8) / 9686330.0F - 0.866F;
        }
        device_copy(device, DEVICE_COMPUTE, memory, host, (size_t)count * sizeof(float), DEVICE_TO);
        if (device_wait(device, DEVICE_COMPUTE) != STATUS_OK) memory = NULL;
    }
    free(host);
    return memory;
}

static int32_t *take_tokens(const struct rig *rig) {
    int32_t *memory = device_take(rig->device, (size_t)rig->N * sizeof(int32_t));
    int32_t *host = malloc((size_t)rig->N * sizeof(int32_t));
    struct random_stream stream;
    random_open(&stream, 1, RANDOM_DATA_ORDER, 0);
    for (int64_t n = 0; n < rig->N && host != NULL; n++)
        host[n] = (int32_t)random_below(&stream, (uint64_t)rig->V);
    if (memory != NULL && host != NULL) {
        device_copy(rig->device, DEVICE_COMPUTE, memory, host, (size_t)rig->N * sizeof(int32_t),
                    DEVICE_TO);
        if (device_wait(rig->device, DEVICE_COMPUTE) != STATUS_OK) memory = NULL;
    }
    free(host);
    return memory;
}

static enum status open_products(struct rig *rig) {
    int64_t square = rig->bench->square;
    for (int type = 0; type < 2; type++) {
        struct linear_shape shape = {.rows = rig->N,
                                     .in = rig->C,
                                     .out = rig->I,
                                     .stride_x = rig->C,
                                     .stride_y = rig->I,
                                     .type = type == 0 ? COMPUTE_F32 : COMPUTE_BF16,
                                     .training = true};
        TRY(rig->ops->linear_open(rig->device, &rig->products[type], &shape));
        rig->ops->linear_load(rig->products[type], rig->embeddings);
        shape = (struct linear_shape){.rows = square,
                                      .in = square,
                                      .out = square,
                                      .stride_x = square,
                                      .stride_y = square,
                                      .type = shape.type};
        TRY(rig->ops->linear_open(rig->device, &rig->squares[type], &shape));
        rig->ops->linear_load(rig->squares[type], rig->square[2]);
    }
    return STATUS_OK;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static enum status open_rig(struct rig *rig, const struct bench *bench, struct device *device) {
    int64_t N = bench->batch * bench->seq_len, C = bench->channels, I = 4 * C, V = bench->vocab;
    *rig = (struct rig){.bench = bench,
                        .device = device,
                        .ops = device->compute,
                        .B = bench->batch,
                        .T = bench->seq_len,
                        .C = C,
                        .N = N,
                        .I = I,
                        .V = V,
                        .heads = bench->heads,
                        .logit_rows = N < 1024 ? N : 1024};
    rig->attention = (struct attention_shape){.B = bench->batch,
                                              .T = bench->seq_len,
                                              .heads = bench->heads,
                                              .kv_heads = bench->heads,
                                              .head_size = C / bench->heads};
    const struct compute_need need = {.rows = N, .channels = C, .attention = rig->attention};
    const struct {
        float **array;
        int64_t count;
    } arrays[] = {
        {&rig->wide[0], N * I},
        {&rig->wide[1], N * I},
        {&rig->wide[2], N * I},
        {&rig->wide[3], I},
        {&rig->narrow[0], N * C},
        {&rig->narrow[1], N * C},
        {&rig->narrow[2], N * C},
        {&rig->narrow[3], N * C},
        {&rig->vectors[0], C},
        {&rig->vectors[1], C},
        {&rig->vectors[2], N},
        {&rig->vectors[3], N},
        {&rig->logits, rig->logit_rows * V},
        {&rig->embeddings, larger(V, I) * C},
        {&rig->embedding_grad, larger(V, I) * C},
        {&rig->square[0], bench->square * bench->square},
        {&rig->square[1], bench->square * bench->square},
        {&rig->square[2], bench->square * bench->square},
        {&rig->scratch, larger(rig->ops->scratch(&need), 1)},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i].array = take(device, arrays[i].count);
        if (*arrays[i].array == NULL) return STATUS_MEMORY;
    }
    rig->tokens = take_tokens(rig);
    if (rig->tokens == NULL) return STATUS_MEMORY;
    return open_products(rig);
}

static void close_rig(struct rig *rig) {
    float *arrays[] = {rig->wide[0],    rig->wide[1],    rig->wide[2],        rig->wide[3],
                       rig->narrow[0],  rig->narrow[1],  rig->narrow[2],      rig->narrow[3],
                       rig->vectors[0], rig->vectors[1], rig->vectors[2],     rig->vectors[3],
                       rig->logits,     rig->embeddings, rig->embedding_grad, rig->square[0],
                       rig->square[1],  rig->square[2],  rig->scratch};
    for (int type = 0; type < 2; type++) {
        if (rig->products[type] != NULL) rig->ops->linear_close(rig->products[type]);
        if (rig->squares[type] != NULL) rig->ops->linear_close(rig->squares[type]);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (arrays[i] != NULL) device_give(rig->device, arrays[i]);
    }
    if (rig->tokens != NULL) device_give(rig->device, rig->tokens);
}

/* ---- measuring ---- */

static enum status seconds_of(const struct rig *rig, const struct timed *timed, int64_t calls,
                              double *seconds) {
    int64_t start_ns = clock_now_ns();
    for (int64_t i = 0; i < calls; i++)
        timed->run(rig);
    TRY(device_wait(rig->device, DEVICE_COMPUTE));
    *seconds = (double)(clock_now_ns() - start_ns) / (double)CLOCK_S;
    return STATUS_OK;
}

static enum status measure(const struct rig *rig, struct timed *list, size_t count) {
    int64_t calls[TIMED_MAX];
    double seconds;
    for (size_t i = 0; i < count; i++) {
        TRY(seconds_of(rig, &list[i], 1, &seconds)); /* the first one prepares */
        TRY(seconds_of(rig, &list[i], 1, &seconds));
        calls[i] = 1 + (int64_t)(0.02 / (seconds > 1e-6 ? seconds : 1e-6));
    }
    for (int64_t turn = 0; turn < rig->bench->turns; turn++) {
        for (size_t i = 0; i < count; i++) {
            TRY(seconds_of(rig, &list[i], calls[i], &seconds));
            list[i].turns[turn] = seconds / (double)calls[i];
        }
    }
    return STATUS_OK;
}

static double rate(struct timed *timed, int64_t turns) {
    double work = timed->bytes > 0 ? timed->bytes : timed->flops;
    return work / median(timed->turns, (size_t)turns);
}

/* What an operation's rate is compared with: the copy, or the largest product of its number type;
 * attention computes in f32. */
static size_t ceiling_of(const struct timed *timed) {
    if (timed->bytes > 0) return COPY;
    return strstr(timed->name, "bf16") != NULL ? SQUARE_BF16 : SQUARE_F32;
}

static void print_line(FILE *file, const struct rig *rig, const struct timed *timed, double own,
                       double ceiling) {
    char line[1024];
    size_t used;
    struct json json;
    bool memory = timed->bytes > 0;
    json_begin(&json, line, sizeof line);
    json_text(&json, "bench", "kernels");
    json_text(&json, "device", rig->device->name);
    json_text(&json, "operation", timed->name);
    json_real(&json, memory ? "bytes" : "flops", memory ? timed->bytes : timed->flops, 15);
    json_real(&json, memory ? "gb_s" : "tflop_s", own / (memory ? 1e9 : 1e12), 6);
    json_real(&json, memory ? "of_copy" : "of_largest_product", own / ceiling, 4);
    if (json_end(&json, &used) == STATUS_OK) (void)fprintf(file, "%s\n", line);
}

static enum status print(const struct rig *rig, struct timed *list, size_t count) {
    double rates[TIMED_MAX] = {0};
    FILE *json = NULL;
    if (rig->bench->json[0] != 0 && (json = fopen(rig->bench->json, "a")) == NULL) {
        log_error("--json %s cannot be written", rig->bench->json);
        return STATUS_IO;
    }
    printf("%s: %" PRId64 " x %" PRId64 " tokens, %" PRId64 " channels, %" PRId64
           " heads, vocabulary %" PRId64 "; medians of %" PRId64 " turns\n",
           rig->device->name, rig->B, rig->T, rig->C, rig->heads, rig->V, rig->bench->turns);
    printf("%-26s %10s %10s %10s %18s\n", "", "us", "GB/s", "TFLOP/s", "of copy or product");
    for (size_t i = 0; i < count; i++) {
        rates[i] = rate(&list[i], rig->bench->turns);
        bool memory = list[i].bytes > 0;
        double ceiling = rates[ceiling_of(&list[i])];
        double us = (memory ? list[i].bytes : list[i].flops) / rates[i] * 1e6;
        printf("%-26s %10.1f ", list[i].name, us);
        if (memory) printf("%10.1f %10s", rates[i] / 1e9, "");
        if (!memory) printf("%10s %10.3f", "", rates[i] / 1e12);
        printf(" %18.2f\n", rates[i] / ceiling);
        if (json != NULL) print_line(json, rig, &list[i], rates[i], ceiling);
    }
    return json == NULL || fclose(json) == 0 ? STATUS_OK : STATUS_IO;
}

static enum status run(const struct bench *bench) {
    enum device_kind kind = DEVICE_CPU;
    int index = 0;
    struct device *device;
    struct rig rig;
    static struct timed list[TIMED_MAX];
    if (bench->channels % bench->heads != 0 || bench->channels / bench->heads % 2 != 0) {
        log_error("--heads %" PRId64 " must divide --channels %" PRId64
                  " into even numbers of channels",
                  bench->heads, bench->channels);
        return STATUS_INVALID;
    }
    (void)device_name_parse(bench->device, &kind, &index); /* it was checked */
    TRY(device_open(&device, kind, index));
    enum status status = open_rig(&rig, bench, device);
    if (status == STATUS_OK) {
        size_t count = list_timed(&rig, list);
        status = measure(&rig, list, count);
        if (status == STATUS_OK) status = print(&rig, list, count);
    }
    close_rig(&rig);
    if (kind != DEVICE_CPU) device_close(device);
    return status;
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
