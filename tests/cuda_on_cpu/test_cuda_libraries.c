/* test_cuda_libraries.c - the stand-in's cuBLAS against a plain loop in double, and its NCCL among
 * threads and among processes against closed forms.
 *
 * Products: all four transposes, f32, bf16 and f16, leading dimensions larger than the rows, a
 * strided batch, and a C full of NaNs that beta 0 must not read. Collectives: counts that take
 * several pieces of the shared file and no multiple of one.
 */
#include "cuda_check.h"
#include "tests/test.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

static cudaStream_t open_stream(void) {
    cudaStream_t stream;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* Device memory with a copy of `from`, or full of NaNs where it is NULL. */
static void *place(const void *from, size_t bytes, cudaStream_t stream) {
    void *memory = NULL;
    CHECK_CUDA(cudaMalloc(&memory, bytes));
    if (from) CHECK_CUDA(cudaMemcpyAsync(memory, from, bytes, cudaMemcpyHostToDevice, stream));
    return memory;
}

static void fetch(void *to, void *device, size_t bytes, cudaStream_t stream) {
    CHECK_CUDA(cudaMemcpyAsync(to, device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaFree(device));
}

/* ---- cuBLAS */

/* Small whole numbers, of which bf16 and f16 hold products' sums exactly. */
enum { M = 5, N = 7, K = 6, LEADING = 9, STRIDE = LEADING * 9, BATCH = 3, SIZE = STRIDE * BATCH };

static float value(int i) {
    return (float)((i * 7 + i / 5) % 5 - 2);
}

/* Whole numbers of up to 256: bf16 is the upper half of an f32; f16 by its fields. */
static uint16_t to_short(float number, cudaDataType type) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (type == CUDA_R_16BF || number == 0.0F) return (uint16_t)(bits >> 16);
    uint32_t exponent = (bits >> 23 & 0xFF) - 127 + 15;
    return (uint16_t)((bits >> 31 << 15) | exponent << 10 | (bits >> 13 & 0x3FF));
}

static float from_short(uint16_t bits, cudaDataType type) {
    if (type == CUDA_R_16BF) {
        uint32_t wide = (uint32_t)bits << 16;
        float number;
        memcpy(&number, &wide, sizeof number);
        return number;
    }
    int exponent = bits >> 10 & 0x1F;
    float size = exponent ? ldexpf(1.0F + (float)(bits & 0x3FF) / 1024.0F, exponent - 15) : 0.0F;
    return bits & 0x8000 ? -size : size;
}

struct operand {
    float values[SIZE];    /* as f32 */
    uint16_t shorts[SIZE]; /* the same */
};

static void *place_operand(struct operand *operand, int shift, cudaDataType type,
                           cudaStream_t stream) {
    for (int i = 0; i < SIZE; i++) {
        operand->values[i] = value(i + shift);
        operand->shorts[i] = to_short(operand->values[i], type);
    }
    bool wide = type == CUDA_R_32F;
    return place(wide ? (const void *)operand->values : operand->shorts,
                 wide ? sizeof operand->values : sizeof operand->shorts, stream);
}

static double element(const struct operand *operand, cublasOperation_t op, int batch, int row,
                      int column) {
    int at = op == CUBLAS_OP_N ? column * LEADING + row : row * LEADING + column;
    return (double)operand->values[batch * STRIDE + at];
}

static void check_product(cublasOperation_t a_op, cublasOperation_t b_op, cudaDataType type,
                          float beta) {
    static struct operand a, b, c;
    static float out[SIZE];
    static uint16_t out_shorts[SIZE];
    const float alpha = 2.0F;
    bool wide = type == CUDA_R_32F;
    cudaStream_t stream = open_stream();
    cublasHandle_t handle;
    CHECK_INT(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    CHECK_INT(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
    void *da = place_operand(&a, 0, type, stream), *db = place_operand(&b, 3, type, stream);
    void *dc = place_operand(&c, 1, type, stream);
    if (beta == 0.0F) CHECK_CUDA(cudaMemsetAsync(dc, 0xFF, SIZE * (wide ? 4U : 2U), stream));
    CHECK_INT(cublasGemmStridedBatchedEx(handle, a_op, b_op, M, N, K, &alpha, da, type, LEADING,
                                         STRIDE, db, type, LEADING, STRIDE, &beta, dc, type,
                                         LEADING, STRIDE, BATCH, CUBLAS_COMPUTE_32F,
                                         CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_SUCCESS);
    fetch(wide ? (void *)out : out_shorts, dc, SIZE * (wide ? 4U : 2U), stream);
    for (int at = 0; at < BATCH * N * M; at++) {
        int batch = at / (N * M), j = at / M % N, i = at % M;
        double sum = 0.0;
        for (int l = 0; l < K; l++)
            sum += element(&a, a_op, batch, i, l) * element(&b, b_op, batch, l, j);
        double expected = 2.0 * sum;
        if (beta != 0.0F) expected += (double)beta * element(&c, CUBLAS_OP_N, batch, i, j);
        int place = batch * STRIDE + j * LEADING + i;
        CHECK_NEAR(wide ? out[place] : from_short(out_shorts[place], type), expected, 0.0);
    }
    CHECK_CUDA(cudaFree(da));
    CHECK_CUDA(cudaFree(db));
    CHECK_INT(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
    CHECK_CUDA(cudaStreamDestroy(stream));
}

static void test_products(void) {
    const cublasOperation_t ops[] = {CUBLAS_OP_N, CUBLAS_OP_T};
    const cudaDataType types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
    for (int type = 0; type < 3; type++) {
        for (int pair = 0; pair < 4; pair++) {
            check_product(ops[pair / 2], ops[pair % 2], types[type], 0.0F);
            check_product(ops[pair / 2], ops[pair % 2], types[type], 1.0F);
        }
    }
}

static void test_product_refused(void) {
    cublasHandle_t handle;
    cudaStream_t stream = open_stream();
    float one = 1.0F;
    void *memory = place(NULL, 4096, stream);
    CHECK_INT(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    CHECK_INT(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
    CHECK_INT(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, memory, CUDA_R_32F, 3,
                           memory, CUDA_R_32F, 4, &one, memory, CUDA_R_32F, 4, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_INVALID_VALUE);
    CHECK(strcmp(cublasGetStatusName(CUBLAS_STATUS_INVALID_VALUE), "CUBLAS_STATUS_INVALID_VALUE") ==
          0);
    CHECK_CUDA(cudaSetDevice(1)); /* not the handle's */
    CHECK_INT(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, memory, CUDA_R_32F, 4,
                           memory, CUDA_R_32F, 4, &one, memory, CUDA_R_32F, 4, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_INT(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
    CHECK_CUDA(cudaFree(memory));
    CHECK_CUDA(cudaStreamDestroy(stream));
}

/* ---- NCCL: rank r's value at i is (r + 1) * (i % 100) */

enum { RANKS = 3, COUNT = 70001 };
struct rank {
    ncclUniqueId id;
    int number;
};

static float rank_value(int rank, size_t i) {
    return (float)((rank + 1) * (int)(i % 100));
}

static void check_collectives(int rank, ncclComm_t comm, cudaStream_t stream) {
    size_t count = COUNT, bytes = count * sizeof(float), all_bytes = RANKS * bytes;
    float *host = malloc(all_bytes);
    CHECK(host);
    for (size_t i = 0; i < RANKS * count; i++)
        host[i] = rank_value(rank, i);
    float *from = place(host, all_bytes, stream), *to = place(NULL, all_bytes, stream);
    CHECK_INT(ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm, stream), ncclSuccess);
    CHECK_CUDA(cudaMemcpyAsync(host, to, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++)
        CHECK_NEAR(host[i], rank_value(0, i) * 6.0F, 0.0);

    CHECK_INT(ncclGroupStart(), ncclSuccess);
    for (int root = 0; root < RANKS; root++) {
        size_t at = (size_t)root * count; /* the others' `to` stays as it is */
        CHECK_INT(ncclReduce(from + at, to, count, ncclFloat32, ncclMax, root, comm, stream),
                  ncclSuccess);
    }
    CHECK_INT(ncclGroupEnd(), ncclSuccess);
    CHECK_CUDA(cudaMemcpyAsync(host, to, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++)
        CHECK_NEAR(host[i], rank_value(RANKS - 1, (size_t)rank * count + i), 0.0);

    CHECK_INT(ncclAllGather(from, to, count, ncclFloat32, comm, stream), ncclSuccess);
    CHECK_INT(ncclBroadcast(from, from, count, ncclFloat32, 1, comm, stream), ncclSuccess);
    CHECK_CUDA(cudaMemcpyAsync(host, to, all_bytes, cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < RANKS * count; i++)
        CHECK_NEAR(host[i], rank_value((int)(i / count), i % count), 0.0);
    CHECK_CUDA(cudaFree(to));
    fetch(host, from, bytes, stream);
    for (size_t i = 0; i < count; i++)
        CHECK_NEAR(host[i], rank_value(1, i), 0.0);
    free(host);
}

static void *rank_main(void *argument) {
    const struct rank *rank = argument;
    ncclComm_t comm;
    CHECK_CUDA(cudaSetDevice(rank->number % 2));
    CHECK_INT(ncclCommInitRank(&comm, RANKS, rank->id, rank->number), ncclSuccess);
    cudaStream_t stream = open_stream();
    check_collectives(rank->number, comm, stream);
    CHECK_CUDA(cudaStreamDestroy(stream));
    CHECK_INT(ncclCommDestroy(comm), ncclSuccess);
    return NULL;
}

static void test_rank_processes(void) {
    struct rank rank;
    pid_t children[RANKS];
    CHECK_INT(ncclGetUniqueId(&rank.id), ncclSuccess);
    for (rank.number = 0; rank.number < RANKS; rank.number++) {
        children[rank.number] = fork();
        if (children[rank.number] == 0) {
            alarm(120);
            rank_main(&rank);
            _exit(0);
        }
    }
    for (int i = 0; i < RANKS; i++) {
        int status = -1;
        CHECK_INT(waitpid(children[i], &status, 0), children[i]);
        CHECK_INT(status, 0);
    }
}

static void test_rank_threads(void) {
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    ncclUniqueId id;
    CHECK_INT(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){id, i};
        CHECK_INT(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
}

int main(void) {
    TEST_RUN(test_rank_processes); /* first, since a process with threads should not fork */
    TEST_RUN(test_rank_threads);
    TEST_RUN(test_products);
    TEST_RUN(test_product_refused);
    return 0;
}
