/* call_kernels.h - kernels that show what the built-in variables and the calls of a warp and a
 * block give (call_kernels.cu). Only for tests/cuda_on_cpu.
 */
#ifndef RUBATO_TESTS_CALL_KERNELS_H
#define RUBATO_TESTS_CALL_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

/* out [all threads] += 1 + place, where place is the thread's own number in a grid of 2 x 3 x 2
 * blocks of 4 x 5 x 3 threads: x runs fastest, threads before blocks. */
enum { CALLS_GRID_THREADS = 2 * 3 * 2 * 4 * 5 * 3 };
int calls_indices(unsigned *out, struct CUstream_st *stream);

/* in, out [32]: lane l's value, and what the call gives it; one warp. */
enum calls_warp {
    CALLS_SHUFFLE,
    CALLS_SHUFFLE_UP,
    CALLS_SHUFFLE_DOWN,
    CALLS_SHUFFLE_XOR,
    CALLS_BALLOT, /* of values that are not 0 */
    CALLS_ALL,
    CALLS_ANY,
    CALLS_MATCH,
    CALLS_ADD,
    CALLS_MIN,
    CALLS_MAX,
    CALLS_WARP_COUNT
};
int calls_warp(enum calls_warp call, int argument, int width, const int *in, int *out,
               struct CUstream_st *stream);

/* out [3]: how many of 96 threads' numbers are multiples of `divisor`, whether all, whether one
 * that is not 0 is (__syncthreads_count, _and, _or). */
int calls_block(unsigned divisor, int *out, struct CUstream_st *stream);

/* 4 blocks of 64 threads, t their number in the grid: out[0] += t + 1, out[1] = max(t), out[2] =
 * min(t), out[3] counts modulo 8 (atomicInc), out[4] |= 1 << t % 32, out[5] ^= t, out[6] += 2 by a
 * loop of atomicCAS, out[7] as a float += 0.5. */
int calls_atomics(unsigned *out, struct CUstream_st *stream);

/* d = a b + c by one warp on the tensor cores: matrices [16, CALLS_MMA_PITCH] of which 16 columns
 * are used, a and b of bfloat16's bits, c and d f32. In a and b (1), or in c and d (2), or in all
 * (3) rows and columns have changed places. */
enum { CALLS_MMA_PITCH = 24 };
int calls_mma(int changed, const unsigned short *a, const unsigned short *b, const float *c,
              float *d, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
