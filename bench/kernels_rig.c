#include "bench/kernels_rig.h"

#include "base/memory.h"
#include "base/random.h"
#include "bench/kernels_timed.h"

#include <stdlib.h>

enum { BLOCK_VALUES = 1 << 18 }; /* of a plan, by default */

/* host [bytes] -> new memory of the device; NULL: none, logged. */
static void *take_copy(struct device *device, const void *host, size_t bytes) {
    void *memory = device_take(device, bytes);
    if (memory == NULL) return NULL;
    device_copy(device, DEVICE_COMPUTE, memory, host, bytes, DEVICE_TO);
    if (device_wait(device, DEVICE_COMPUTE) == STATUS_OK) return memory;
    device_give(device, memory);
    return NULL;
}

/* Values of variance 1/4 on the device; NULL: no memory, logged. */
static float *take(struct device *device, int64_t count) {
    float *host = memory_zeroed((size_t)count, sizeof *host);
    uint32_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        host[i] = (float)(state >> 8) / 9686330.0F - 0.866F;
    }
    float *memory = take_copy(device, host, (size_t)count * sizeof *host);
    free(host);
    return memory;
}

static int32_t *take_tokens(const struct rig *rig) {
    int32_t *host = memory_zeroed((size_t)rig->N, sizeof *host);
    struct random_stream stream;
    random_open(&stream, 1, RANDOM_DATA_ORDER, 0);
    for (int64_t n = 0; n < rig->N; n++)
        host[n] = (int32_t)random_below(&stream, (uint64_t)rig->V);
    int32_t *memory = take_copy(rig->device, host, (size_t)rig->N * sizeof *host);
    free(host);
    return memory;
}

bool kernels_rig_has(const struct rig *rig, enum compute_type type) {
    return type != COMPUTE_TF32 || !device_is_host(rig->device);
}

static enum status open_products(struct rig *rig) {
    int64_t square = rig->bench->square;
    for (int type = 0; type < KERNELS_TYPES; type++) {
        if (!kernels_rig_has(rig, (enum compute_type)type)) continue;
        struct linear_shape shape = {.rows = rig->N,
                                     .in = rig->C,
                                     .out = rig->I,
                                     .stride_x = rig->C,
                                     .stride_y = rig->I,
                                     .type = (enum compute_type)type,
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

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

struct attention_shape kernels_rig_attention(const struct rig *rig, bool bf16) {
    return (struct attention_shape){.B = rig->B,
                                    .T = rig->T,
                                    .heads = rig->heads,
                                    .kv_heads = rig->heads,
                                    .head_size = rig->C / rig->heads,
                                    .bf16 = bf16};
}

int64_t kernels_rig_block(const struct rig *rig) {
    return rig->block_rows * rig->I;
}

static enum status take_states(struct rig *rig) {
    size_t bytes = (size_t)rig->blocks * kernels_update_state_bytes(rig);
    rig->states = device_take(rig->device, bytes);
    if (rig->states == NULL) return STATUS_MEMORY;
    device_zero(rig->device, DEVICE_COMPUTE, rig->states, bytes);
    size_t sums = (size_t)(rig->blocks + COMPUTE_SQUARES_SCRATCH) * sizeof *rig->sums;
    rig->sums = device_take(rig->device, sums);
    return rig->sums != NULL ? STATUS_OK : STATUS_MEMORY;
}

static void set_sizes(struct rig *rig, const struct bench *bench, struct device *device) {
    int64_t N = bench->batch * bench->seq_len, C = bench->channels, I = 4 * C;
    *rig = (struct rig){.bench = bench,
                        .device = device,
                        .ops = device->compute,
                        .B = bench->batch,
                        .T = bench->seq_len,
                        .C = C,
                        .N = N,
                        .I = I,
                        .V = bench->vocab,
                        .heads = bench->heads,
                        .logit_rows = smaller(N, 1024),
                        .block_rows = smaller(N, larger(BLOCK_VALUES / I, 1))};
    rig->blocks = N / rig->block_rows;
}

enum status kernels_rig_open(struct rig *rig, const struct bench *bench, struct device *device) {
    set_sizes(rig, bench, device);
    int64_t N = rig->N, C = rig->C, I = rig->I, V = rig->V;
    const struct compute_need need = {
        .rows = N, .channels = C, .attention = kernels_rig_attention(rig, false)};
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
    TRY(take_states(rig));
    return open_products(rig);
}

void kernels_rig_close(struct rig *rig) {
    void *arrays[] = {rig->wide[0],    rig->wide[1],    rig->wide[2],        rig->wide[3],
                      rig->narrow[0],  rig->narrow[1],  rig->narrow[2],      rig->narrow[3],
                      rig->vectors[0], rig->vectors[1], rig->vectors[2],     rig->vectors[3],
                      rig->logits,     rig->embeddings, rig->embedding_grad, rig->square[0],
                      rig->square[1],  rig->square[2],  rig->scratch,        rig->tokens,
                      rig->states,     rig->sums};
    for (int type = 0; type < KERNELS_TYPES; type++) {
        if (rig->products[type] != NULL) rig->ops->linear_close(rig->products[type]);
        if (rig->squares[type] != NULL) rig->ops->linear_close(rig->squares[type]);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        device_give(rig->device, arrays[i]);
}
