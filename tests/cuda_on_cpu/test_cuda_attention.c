/* test_cuda_attention.c - attention's CUDA kernels against the host's plain twin: sequences of 1 to
 * 5 tiles, none a multiple of one; each size that heads are padded to, one below, and one beyond
 * all of them, also where a block has little shared memory; heads that share keys and values; large
 * scores; rows that are not aligned for vectors; dropout, whose places must be the twin's exactly
 * (a wrong one is an error of the probability's size). A second run must give the same bits, in
 * whatever order the threads run. The f32 kernels are within f32 roundings, those for the tensor
 * cores within bfloat16's, of which they make two, given inputs that are bfloat16 already: of the
 * probabilities and of the scores' gradients.
 *
 * The same program runs on the stand-in and on a GPU; where there is no device it skips.
 */
#include "device_array.h"
#include "kernels/attention.h"
#include "kernels/cuda/flash_bf16_cuda.h"
#include "kernels/cuda/flash_cuda.h"
#include "kernels/cuda/flash_wide_cuda.h"

#include <stdbool.h>

static int wide_backward(const struct attention_shape *shape, const struct attention_saved *saved,
                         const float *dy, float *dqkv, float *delta, struct CUstream_st *queue) {
    int error = flash_wide_cuda_delta(shape, dy, saved->y, delta, queue);
    return error != 0 ? error : flash_wide_cuda_backward(shape, saved, dy, dqkv, delta, queue);
}

/* What computes, and how near it comes. */
struct twin {
    int (*forward)(const struct attention_shape *shape, const float *qkv, float *lse, float *y,
                   struct CUstream_st *queue);
    int (*backward)(const struct attention_shape *shape, const struct attention_saved *saved,
                    const float *dy, float *dqkv, float *delta, struct CUstream_st *queue);
    double tolerance; /* of y and dqkv; lse is f32 in all */
    bool bf16;
};
static const struct twin tiles = {flash_cuda_forward, flash_cuda_backward, 1e-5, false};
static const struct twin wide = {flash_wide_cuda_forward, wide_backward, 1e-5, false};
static const struct twin bf16 = {flash_bf16_cuda_forward, flash_bf16_cuda_backward, 5e-3, true};

/* To bfloat16. */
static void round_values(struct array *array) {
    for (int64_t i = 0; i < array->count; i++) {
        uint32_t bits;
        memcpy(&bits, &array->host[i], sizeof bits);
        bits = (bits + 0x8000U) & 0xFFFF0000U;
        memcpy(&array->host[i], &bits, sizeof bits);
    }
    push(array);
}

/* What a twin is given, and what it made. */
struct passes {
    struct attention_shape shape;
    struct array qkv, dy, lse, y, dqkv, delta;
};

static void run(const struct twin *twin, const struct passes *p) {
    const struct attention_saved saved = {p->qkv.device, p->y.device, p->lse.device};
    CHECK_CUDA(twin->forward(&p->shape, p->qkv.device, p->lse.device, p->y.device, stream));
    CHECK_CUDA(
        twin->backward(&p->shape, &saved, p->dy.device, p->dqkv.device, p->delta.device, stream));
}

/* Once more, into other arrays. */
static void check_again(const struct twin *twin, const struct passes *first) {
    struct passes again = *first;
    again.y = make_output(first->y.count);
    again.dqkv = make_output(first->dqkv.count);
    run(twin, &again);
    memcpy(again.y.expected, first->y.host, (size_t)first->y.count * sizeof(float));
    memcpy(again.dqkv.expected, first->dqkv.host, (size_t)first->dqkv.count * sizeof(float));
    check_same("y again", again.y);
    check_same("dqkv again", again.dqkv);
}

struct options {
    float size; /* of queries, keys and values; 0: 1 */
    bool dropout, misaligned, twice;
};

static void check(const struct twin *twin, struct attention_shape shape, struct options options) {
    const struct dropout dropout = dropout_make(0.3F, 5, 6, 7, DROPOUT_ATTENTION);
    const int64_t rows = shape.B * shape.T, D = shape.head_size, out = rows * shape.heads;
    const int64_t in = rows * (shape.heads + 2 * shape.kv_heads) * D;
    const float size = options.size > 0.0F ? options.size : 1.0F;
    printf("  B %d, T %d, heads %d/%d, D %d%s\n", (int)shape.B, (int)shape.T, (int)shape.heads,
           (int)shape.kv_heads, (int)D, options.dropout ? ", dropout" : "");
    misalignment = options.misaligned;
    if (options.dropout) shape.dropout = &dropout;
    struct passes p = {shape,
                       make(in, 1, size),
                       make(out * D, 2, 1.0F),
                       make_output(out),
                       make_output(out * D),
                       make_output(in),
                       make_output(out)};
    if (twin->bf16) {
        round_values(&p.qkv);
        round_values(&p.dy);
    }
    run(twin, &p);
    const struct attention_saved saved = {p.qkv.host, p.y.expected, p.lse.expected};
    attention_forward_ref(&shape, p.qkv.host, p.lse.expected, p.y.expected, NULL);
    attention_backward_ref(&shape, &saved, p.dy.host, p.dqkv.expected, NULL);
    fetch(&p.y);
    fetch(&p.dqkv);
    if (options.twice) check_again(twin, &p);
    /* Scores, and with them errors, grow with the square of the size. */
    check_near("lse", p.lse, 1e-5 * (double)(1.0F + size * size));
    check_near("y", p.y, twin->tolerance * (double)(1.0F + size * size));
    check_near("dqkv", p.dqkv, twin->tolerance * (double)(1.0F + size * size));
    drop(&p.qkv);
    drop(&p.dy);
    drop(&p.delta);
}

static struct attention_shape of(int64_t B, int64_t T, int64_t heads, int64_t kv_heads, int64_t D) {
    return (struct attention_shape){
        .B = B, .T = T, .heads = heads, .kv_heads = kv_heads, .head_size = D};
}

static void check_sequences(const struct twin *twin) {
    check(twin, of(1, 1, 1, 1, 1), (struct options){0});
    check(twin, of(2, 7, 3, 3, 5), (struct options){.dropout = true});
    check(twin, of(2, 70, 4, 2, 16), (struct options){.twice = true});
    check(twin, of(1, 130, 2, 1, 20), (struct options){.dropout = true});
    check(twin, of(1, 260, 1, 1, 4), (struct options){.size = 8.0F});
    check(twin, of(1, 66, 2, 2, 8), (struct options){.misaligned = true});
}

static void test_tiles(void) {
    check_sequences(&tiles);
}

static void test_head_sizes(void) {
    const int64_t sizes[][2] = {{32, 29}, {64, 44}, {96, 80}, {128, 100}, {256, 200}};
    for (int i = 0; i < 5; i++) {
        check(&tiles, of(1, 65, 2, 1, sizes[i][0]), (struct options){.dropout = true});
        check(&tiles, of(1, 71, 1, 1, sizes[i][1]), (struct options){0});
    }
}

static void test_wide_heads(void) {
    check(&wide, of(2, 7, 3, 3, 5), (struct options){.size = 8.0F});
    check(&wide, of(2, 9, 4, 2, 37), (struct options){.dropout = true, .twice = true});
    check(&tiles, of(1, 5, 4, 2, 261), (struct options){.dropout = true}); /* too wide for tiles */
}

static void test_bf16(void) {
    check_sequences(&bf16);
    check(&bf16, of(1, 65, 2, 1, 64), (struct options){0});
    check(&bf16, of(1, 67, 2, 1, 128), (struct options){.dropout = true});
    check(&bf16, of(1, 7, 1, 1, 100), (struct options){.twice = true});
    struct attention_shape shape = of(1, 1, 1, 1, FLASH_BF16_HEAD_MAX + 1);
    CHECK(flash_bf16_cuda_forward(&shape, NULL, NULL, NULL, stream) != 0);
}

/* A chip whose blocks have less shared memory; on a GPU these are more sizes of its own. */
static void test_small_chip(void) {
    int device = 0, most = 0;
    CHECK(setenv("CUDA_ON_CPU_SHARED_KB", "99", 1) == 0);
    CHECK_CUDA(cudaGetDevice(&device));
    CHECK_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const struct attention_shape narrow = of(1, 1, 1, 1, 64), broad = of(1, 1, 1, 1, 128);
    CHECK(flash_bf16_cuda_takes(&narrow));
    CHECK(flash_bf16_cuda_takes(&broad) == (most >= 105 << 10));
    check(&bf16, of(1, 3, 1, 1, 64), (struct options){0});
    check(&tiles, of(1, 5, 1, 1, 64), (struct options){0});
    check(&tiles, of(1, 5, 1, 1, 90), (struct options){0});
    check(&tiles, of(1, 67, 2, 1, 128), (struct options){.dropout = true});
    check(&tiles, of(1, 5, 1, 1, 200), (struct options){0});
    CHECK(unsetenv("CUDA_ON_CPU_SHARED_KB") == 0);
}

int main(void) {
    device_tests_begin();
    TEST_RUN(test_tiles);
    TEST_RUN(test_head_sizes);
    TEST_RUN(test_wide_heads);
    TEST_RUN(test_bf16);
    TEST_RUN(test_small_chip);
    device_tests_end();
    return 0;
}
