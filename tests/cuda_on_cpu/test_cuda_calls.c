/* test_cuda_calls.c - that the stand-in gives what CUDA documents: built-in variables, the calls of
 * a warp and of a block, atomics, copies, streams, events, host functions and several host threads,
 * each against a closed form or a plain loop.
 */
#include "call_kernels.h"
#include "cuda_check.h"
#include "tests/test.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

static cudaStream_t stream;

/* Device memory of `bytes`, each 0. */
static void *zeroed(size_t bytes) {
    void *memory = NULL;
    CHECK_CUDA(cudaMalloc(&memory, bytes));
    CHECK_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
    return memory;
}

static void fetch(void *to, void *device, size_t bytes) {
    CHECK_CUDA(cudaMemcpyAsync(to, device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaFree(device));
}

static void test_indices(void) {
    static unsigned out[CALLS_GRID_THREADS];
    unsigned *device = zeroed(sizeof out);
    CHECK_CUDA(calls_indices(device, stream));
    fetch(out, device, sizeof out);
    for (int i = 0; i < CALLS_GRID_THREADS; i++)
        CHECK_INT(out[i], 1 + i);
}

/* ---- a warp's calls, by their definition */

static int shuffled(enum calls_warp call, int argument, int width, const int *in, int lane) {
    int begin = lane / width * width, end = begin + width;
    int source = lane;
    if (call == CALLS_SHUFFLE) source = begin + argument % width;
    if (call == CALLS_SHUFFLE_UP) source = lane - argument;
    if (call == CALLS_SHUFFLE_DOWN) source = lane + argument;
    if (call == CALLS_SHUFFLE_XOR) source = lane ^ argument;
    if (source < begin && call == CALLS_SHUFFLE_UP) source = lane;
    if (source >= end) source = lane;
    return in[source];
}

static int collected(enum calls_warp call, const int *in, int lane) {
    int ballot = 0, match = 0, sum = 0, least = in[0], most = in[0];
    for (int i = 0; i < 32; i++) {
        ballot |= in[i] != 0 ? (int)(1U << i) : 0;
        match |= in[i] == in[lane] ? (int)(1U << i) : 0;
        sum += in[i];
        least = in[i] < least ? in[i] : least;
        most = in[i] > most ? in[i] : most;
    }
    const int results[CALLS_WARP_COUNT] = {
        [CALLS_BALLOT] = ballot, [CALLS_ALL] = ballot == -1, [CALLS_ANY] = ballot != 0,
        [CALLS_MATCH] = match,   [CALLS_ADD] = sum,          [CALLS_MIN] = least,
        [CALLS_MAX] = most};
    return results[call];
}

static void check_warp(enum calls_warp call, int argument, int width, const int *in) {
    int out[32];
    int *device_in = zeroed(sizeof out), *device_out = zeroed(sizeof out);
    CHECK_CUDA(cudaMemcpyAsync(device_in, in, sizeof out, cudaMemcpyHostToDevice, stream));
    CHECK_CUDA(calls_warp(call, argument, width, device_in, device_out, stream));
    fetch(out, device_out, sizeof out);
    CHECK_CUDA(cudaFree(device_in));
    for (int lane = 0; lane < 32; lane++) {
        int expected = call <= CALLS_SHUFFLE_XOR ? shuffled(call, argument, width, in, lane)
                                                 : collected(call, in, lane);
        if (out[lane] != expected)
            fprintf(stderr, "call %d, argument %d, width %d, lane %d\n", (int)call, argument, width,
                    lane);
        CHECK_INT(out[lane], expected);
    }
}

static void test_warp(void) {
    int distinct[32], repeated[32], zeros[32] = {0}, ones[32];
    for (int i = 0; i < 32; i++) {
        distinct[i] = 1000 - i * 77;
        repeated[i] = i % 5 - 1;
        ones[i] = 1;
    }
    for (int call = CALLS_SHUFFLE; call <= CALLS_SHUFFLE_XOR; call++) {
        for (int width = 1; width <= 32; width *= 4 - 2 * (width == 16)) {
            for (int argument = 0; argument < 32; argument += 3)
                check_warp((enum calls_warp)call, argument, width, distinct);
        }
    }
    for (int call = CALLS_BALLOT; call < CALLS_WARP_COUNT; call++) {
        check_warp((enum calls_warp)call, 0, 32, repeated);
        check_warp((enum calls_warp)call, 0, 32, zeros);
        check_warp((enum calls_warp)call, 0, 32, ones);
    }
}

static void test_block(void) {
    for (unsigned divisor = 1; divisor <= 128; divisor *= 2) {
        int out[3];
        int *device = zeroed(sizeof out);
        CHECK_CUDA(calls_block(divisor, device, stream));
        fetch(out, device, sizeof out);
        CHECK_INT(out[0], (96 + divisor - 1) / divisor);
        CHECK_INT(out[1], divisor == 1);
        CHECK_INT(out[2], divisor < 96);
    }
}

static void test_atomics(void) {
    unsigned out[8];
    unsigned *device = zeroed(sizeof out);
    CHECK_CUDA(cudaMemsetAsync(device + 2, 0xFF, sizeof out[2], stream));
    CHECK_CUDA(calls_atomics(device, stream));
    fetch(out, device, sizeof out);
    unsigned count = 256;
    CHECK_INT(out[0], count * (count + 1) / 2);
    CHECK_INT(out[1], count - 1);
    CHECK_INT(out[2], 0);
    CHECK_INT(out[3], 0); /* 256 is a multiple of 8 */
    CHECK_INT(out[4], 0xFFFFFFFFU);
    CHECK_INT(out[5], 0); /* 0 ^ 1 ^ ... ^ 255 */
    CHECK_INT(out[6], 2 * count);
    float halves;
    memcpy(&halves, &out[7], sizeof halves);
    CHECK_NEAR(halves, 128.0, 0.0);
}

/* ---- matrix products: small whole numbers, so that the result is exact */

enum { MMA_SIDE = 16, MMA_COUNT = MMA_SIDE * CALLS_MMA_PITCH };

/* An element of a matrix that lies there as it is, or with rows and columns in changed places. */
static int mma_place(bool changed, int row, int column) {
    return changed ? column * CALLS_MMA_PITCH + row : row * CALLS_MMA_PITCH + column;
}

static int mma_value(int row, int column, int kind) {
    return (row * (7 + kind) + column * (3 + 2 * kind)) % 11 - 5;
}

static void check_mma(int changed) {
    const bool flipped = (changed & 1) != 0, sums_flipped = (changed & 2) != 0;
    unsigned short a[MMA_COUNT] = {0}, b[MMA_COUNT] = {0};
    float c[MMA_COUNT] = {0}, d[MMA_COUNT];
    for (int i = 0; i < MMA_SIDE * MMA_SIDE; i++) {
        const int row = i / MMA_SIDE, column = i % MMA_SIDE;
        float left = (float)mma_value(row, column, 0), right = (float)mma_value(row, column, 1);
        uint32_t bits[2];
        memcpy(&bits[0], &left, sizeof left);
        memcpy(&bits[1], &right, sizeof right);
        a[mma_place(flipped, row, column)] = (unsigned short)(bits[0] >> 16);
        b[mma_place(flipped, row, column)] = (unsigned short)(bits[1] >> 16);
        c[mma_place(sums_flipped, row, column)] = (float)mma_value(row, column, 2);
    }
    unsigned short *on_a = zeroed(sizeof a), *on_b = zeroed(sizeof b);
    float *on_c = zeroed(sizeof c), *on_d = zeroed(sizeof d);
    CHECK_CUDA(cudaMemcpyAsync(on_a, a, sizeof a, cudaMemcpyHostToDevice, stream));
    CHECK_CUDA(cudaMemcpyAsync(on_b, b, sizeof b, cudaMemcpyHostToDevice, stream));
    CHECK_CUDA(cudaMemcpyAsync(on_c, c, sizeof c, cudaMemcpyHostToDevice, stream));
    CHECK_CUDA(calls_mma(changed, on_a, on_b, on_c, on_d, stream));
    fetch(d, on_d, sizeof d);
    CHECK_CUDA(cudaFree(on_a));
    CHECK_CUDA(cudaFree(on_b));
    CHECK_CUDA(cudaFree(on_c));
    for (int i = 0; i < MMA_SIDE * MMA_SIDE; i++) {
        const int row = i / MMA_SIDE, column = i % MMA_SIDE;
        int sum = mma_value(row, column, 2);
        for (int k = 0; k < MMA_SIDE; k++)
            sum += mma_value(row, k, 0) * mma_value(k, column, 1);
        CHECK_NEAR(d[mma_place(sums_flipped, row, column)], sum, 0.0);
    }
}

static void test_mma(void) {
    for (int changed = 0; changed < 4; changed++)
        check_mma(changed);
}

/* ---- memory, streams, events */

static void test_copies(void) {
    enum { ROWS = 7, WIDTH = 5, PITCH = 12 };
    char from[ROWS * WIDTH], to[ROWS * PITCH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        from[i] = (char)(i + 1);
    memset(to, 0, sizeof to);
    char *device = zeroed((size_t)ROWS * PITCH);
    CHECK_CUDA(
        cudaMemcpy2DAsync(device, PITCH, from, WIDTH, WIDTH, ROWS, cudaMemcpyHostToDevice, stream));
    memset(from, 0, sizeof from); /* pageable: was read at the call */
    fetch(to, device, sizeof to);
    for (int i = 0; i < ROWS * PITCH; i++)
        CHECK_INT(to[i], i % PITCH < WIDTH ? i / PITCH * WIDTH + i % PITCH + 1 : 0);
    CHECK_INT(cudaMemcpy2DAsync(device, 4, from, 4, 5, 1, cudaMemcpyDefault, stream),
              cudaErrorInvalidPitchValue);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidPitchValue);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
}

static void test_memory(void) {
    size_t before = 0, total = 0, after = 0;
    void *memory = NULL;
    CHECK_CUDA(cudaMemGetInfo(&before, &total));
    CHECK_INT(cudaMalloc(&memory, total + 1), cudaErrorMemoryAllocation);
    CHECK(memory == NULL);
    CHECK_CUDA(cudaMalloc(&memory, 1000));
    CHECK_INT((uintptr_t)memory % 256, 0);
    CHECK_CUDA(cudaMemGetInfo(&after, &total));
    CHECK_INT(before - after, 1000);
    CHECK_CUDA(cudaFree(memory));
    CHECK_CUDA(cudaMemGetInfo(&after, &total));
    CHECK_INT(after, before);
    static char own[4096];
    CHECK_CUDA(cudaHostRegister(own, sizeof own, cudaHostRegisterDefault));
    CHECK_INT(cudaHostRegister(own, sizeof own, cudaHostRegisterDefault),
              cudaErrorHostMemoryAlreadyRegistered);
    CHECK_CUDA(cudaHostUnregister(own));
    CHECK_INT(cudaHostUnregister(own), cudaErrorHostMemoryNotRegistered);
}

static void CUDART_CB count_call(void *argument) {
    ++*(atomic_int *)argument;
}

/* Polling alone gets work done, and so does waiting for nothing but the work's effect. */
static void test_progress(void) {
    atomic_int calls = 0;
    cudaEvent_t start, end;
    CHECK_CUDA(cudaEventCreateWithFlags(&start, 0));
    CHECK_CUDA(cudaEventCreateWithFlags(&end, 0));
    CHECK_INT(cudaEventQuery(start), cudaSuccess); /* never recorded */
    CHECK_CUDA(cudaEventRecord(start, stream));
    CHECK_CUDA(cudaLaunchHostFunc(stream, count_call, &calls));
    CHECK_CUDA(cudaEventRecord(end, stream));
    for (int i = 0; cudaEventQuery(end) == cudaErrorNotReady; i++)
        CHECK(i < 10000);
    CHECK_INT(calls, 1);
    float ms = -1.0F;
    CHECK_CUDA(cudaEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0.0F);
    CHECK_CUDA(cudaLaunchHostFunc(stream, count_call, &calls));
    for (int i = 0; calls < 2; i++) {
        CHECK(i < 1000);
        usleep(20000);
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_INT(cudaStreamQuery(stream), cudaSuccess);
    CHECK_CUDA(cudaEventDestroy(start));
    CHECK_CUDA(cudaEventDestroy(end));
}

/* What an address is, in the middle of an allocation, too, and while another device is current. */
static void check_pointers(int other, void *of_first) {
    struct cudaPointerAttributes told;
    void *memory, *pinned;
    CHECK_CUDA(cudaMalloc(&memory, 100));
    CHECK_CUDA(cudaHostAlloc(&pinned, 100, cudaHostAllocDefault));
    CHECK_CUDA(cudaPointerGetAttributes(&told, (char *)memory + 99));
    CHECK(told.type == cudaMemoryTypeDevice && told.device == other);
    CHECK_CUDA(cudaPointerGetAttributes(&told, of_first));
    CHECK(told.type == cudaMemoryTypeDevice && told.device == 0);
    CHECK_CUDA(cudaPointerGetAttributes(&told, pinned));
    CHECK(told.type == cudaMemoryTypeHost);
    CHECK_CUDA(cudaPointerGetAttributes(&told, &told));
    CHECK(told.type == cudaMemoryTypeUnregistered);
    CHECK_CUDA(cudaFreeHost(pinned));
    CHECK_CUDA(cudaFree(memory));
}

/* A stream and an event belong to the device that was current when they were made. */
static void test_other_device(void) {
    int least = -1, greatest = 1, device = 1;
    cudaEvent_t event;
    cudaStream_t urgent;
    unsigned *memory = zeroed(CALLS_GRID_THREADS * sizeof *memory);
    char bus_id[16];
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK_INT(calls_indices(memory, stream), cudaErrorInvalidResourceHandle);
    CHECK_INT(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
    CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(greatest <= least);
    CHECK_CUDA(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    CHECK_CUDA(cudaEventRecord(event, urgent));
    CHECK_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device));
    CHECK(strcmp(bus_id, "0000:02:00.0") == 0);
    check_pointers(device, memory);
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaStreamWaitEvent(stream, event, 0)); /* events order streams of all devices */
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_INT(cudaEventQuery(event), cudaSuccess);
    CHECK_INT(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    CHECK_CUDA(cudaEventDestroy(event));
    CHECK_CUDA(cudaStreamDestroy(urgent));
    CHECK_CUDA(cudaFree(memory));
}

/* ---- several host threads, each with its device and its stream */

static void *thread_main(void *argument) {
    int number = *(int *)argument, device = -1;
    cudaStream_t own;
    CHECK_CUDA(cudaSetDevice(number % 2));
    CHECK_CUDA(cudaGetDevice(&device));
    CHECK_INT(device, number % 2);
    CHECK_CUDA(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    unsigned *memory = NULL, *out = NULL;
    size_t bytes = CALLS_GRID_THREADS * sizeof *out;
    CHECK_CUDA(cudaMalloc((void **)&memory, bytes));
    CHECK_CUDA(cudaHostAlloc((void **)&out, bytes, cudaHostAllocDefault));
    CHECK_CUDA(cudaMemsetAsync(memory, 0, bytes, own));
    for (int i = 0; i < 3; i++)
        CHECK_CUDA(calls_indices(memory, own));
    CHECK_CUDA(cudaMemcpyAsync(out, memory, bytes, cudaMemcpyDeviceToHost, own));
    CHECK_CUDA(cudaStreamSynchronize(own));
    for (int i = 0; i < CALLS_GRID_THREADS; i++)
        CHECK_INT(out[i], 3 * (1 + i));
    CHECK_CUDA(cudaFree(memory));
    CHECK_CUDA(cudaFreeHost(out));
    CHECK_CUDA(cudaStreamDestroy(own));
    return NULL;
}

static void test_host_threads(void) {
    pthread_t threads[3];
    int numbers[3] = {0, 1, 2};
    for (int i = 0; i < 3; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, thread_main, &numbers[i]), 0);
    for (int i = 0; i < 3; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    int count = 0;
    CHECK_CUDA(cudaGetDeviceCount(&count));
    CHECK_INT(cudaSetDevice(count), cudaErrorInvalidDevice);
}

int main(void) {
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TEST_RUN(test_indices);
    TEST_RUN(test_warp);
    TEST_RUN(test_block);
    TEST_RUN(test_atomics);
    TEST_RUN(test_mma);
    TEST_RUN(test_copies);
    TEST_RUN(test_memory);
    TEST_RUN(test_progress);
    TEST_RUN(test_other_device);
    TEST_RUN(test_host_threads);
    CHECK_CUDA(cudaStreamDestroy(stream));
    return 0;
}
