/* codec_delta_cuda.cu - a replica's steps (compression/delta.h); and a block of one value, as what
 * is not finite travels. A thread a value, which all steps find in a register.
 */
#include "compression/cuda/codec_launch.h"
#include "compression/cuda/codec_numbers.cuh"
#include "kernels/cuda/launch.cuh"

enum { DELTA_THREADS = 256, DELTA_BLOCK = 128 };

/* The code of value `place` of a block at `at`. */
static __device__ __forceinline__ int code_at(const uint8_t *at, int place, bool four_bits) {
    if (!four_bits) return (int8_t)at[2 + place];
    const int byte = (int8_t)at[2 + place % (DELTA_BLOCK / 2)];
    return place < DELTA_BLOCK / 2 ? (int)((uint32_t)byte << 28) >> 28 : byte >> 4;
}

static __global__ void __launch_bounds__(DELTA_THREADS)
    delta_kernel(struct codec_steps steps, const uint8_t *wire, float *replica) {
    const int64_t stride = (int64_t)gridDim.x * DELTA_THREADS;
    const int block_bytes = 2 + (steps.four_bits ? DELTA_BLOCK / 2 : DELTA_BLOCK);
    for (int64_t i = (int64_t)blockIdx.x * DELTA_THREADS + threadIdx.x; i < steps.count;
         i += stride) {
        const uint8_t *at = wire + i / DELTA_BLOCK * block_bytes;
        float value = replica[i];
        for (uint32_t step = 0; step < steps.steps; step++, at += steps.step_bytes) {
            const int code = code_at(at, (int)(i % DELTA_BLOCK), steps.four_bits);
            const float move = __fmul_rn((float)code, bf16_widen(get_half(at)));
            value = bf16_widen(bf16_round(host_nan(__fadd_rn(value, move), value, move)));
        }
        replica[i] = value;
    }
}

static __global__ void __launch_bounds__(DELTA_THREADS)
    fill_kernel(const uint8_t *wire, float *out, bool add, int64_t count) {
    const int64_t stride = (int64_t)gridDim.x * DELTA_THREADS;
    const float value = __uint_as_float(get_word(wire));
    for (int64_t i = (int64_t)blockIdx.x * DELTA_THREADS + threadIdx.x; i < count; i += stride)
        out[i] = add ? __fadd_rn(out[i], value) : value;
}

int codec_launch_delta(const struct codec_steps *steps, const uint8_t *wire, float *replica,
                       struct CUstream_st *stream) {
    return kernel_launch(delta_kernel, kernel_blocks(steps->count, DELTA_THREADS),
                         dim3(DELTA_THREADS), 0, stream, *steps, wire, replica);
}

int codec_launch_fill(const uint8_t *wire, float *out, bool add, int64_t count,
                      struct CUstream_st *stream) {
    return kernel_launch(fill_kernel, kernel_blocks(count, DELTA_THREADS), dim3(DELTA_THREADS), 0,
                         stream, wire, out, add, count);
}
