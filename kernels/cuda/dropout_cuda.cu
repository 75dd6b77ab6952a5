/* dropout_cuda.cu - a thread N blocks of the generator, side by side: the four packs of a row, 16
 * columns apart, that their words decide.
 */
#include "kernels/cuda/dropout_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/philox.cuh"

enum { THREADS = 256, WORDS = 4, LANES = 16 };

template <int N>
static __global__ void __launch_bounds__(THREADS)
    rows_kernel(struct dropout dropout, const float *x, float *y, int64_t R, int64_t C) {
    const int64_t block = pack_column<N>(); // LANES blocks for each LANES * WORDS columns
    const int64_t first = block / LANES * (LANES * WORDS) + block % LANES;
    if (first >= C) return;
    for (int64_t r = blockIdx.y; r < R; r += gridDim.y) {
        pack<N> v[WORDS];
        for (int w = 0; w < WORDS; w++)
            if (first + w * LANES < C) v[w] = pack_load<N>(x + r * C + first + w * LANES);
        for (int i = 0; i < N; i++) {
            const uint4 words = philox(dropout.key[0], dropout.key[1],
                                       make_uint4((uint32_t)r, (uint32_t)(block + i), 0, 0));
            v[0].lane[i] *= words.x < dropout.threshold ? 0.0F : dropout.scale;
            v[1].lane[i] *= words.y < dropout.threshold ? 0.0F : dropout.scale;
            v[2].lane[i] *= words.z < dropout.threshold ? 0.0F : dropout.scale;
            v[3].lane[i] *= words.w < dropout.threshold ? 0.0F : dropout.scale;
        }
        for (int w = 0; w < WORDS; w++)
            if (first + w * LANES < C) pack_store(y + r * C + first + w * LANES, v[w]);
    }
}

template <int N>
static cudaError_t rows(const struct dropout *dropout, const float *x, float *y, int64_t R,
                        int64_t C, cudaStream_t stream) {
    const int64_t groups = (C + LANES * WORDS - 1) / (LANES * WORDS), packs = groups * (LANES / N);
    const dim3 threads = kernel_threads(packs, THREADS);
    return kernel_launch(rows_kernel<N>, kernel_rows(R, packs, threads), threads, 0, stream,
                         *dropout, x, y, R, C);
}

int dropout_cuda_rows(const struct dropout *dropout, const float *x, float *y, int64_t R, int64_t C,
                      struct CUstream_st *stream) {
    return packable(C, x, y) ? rows<4>(dropout, x, y, R, C, stream)
                             : rows<1>(dropout, x, y, R, C, stream);
}
