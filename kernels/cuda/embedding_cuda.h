/* embedding_cuda.h - token and position embeddings on a CUDA device: kernels/embedding.h, whose
 * shapes and _add they keep.
 *
 * Backward adds no two rows to one place at once: it sorts the rows by token, sums runs of the same
 * token in pieces of rows, and joins the sums of runs that go on over several pieces. The order of
 * additions is the rows': the same bits in every run. Cost, with N = B * T rows: 2 N^2 integer
 * operations to sort (by this count 0.3 ms of an H200 for N = 64 Ki, 20 us for 16 Ki), dy read once
 * for the tokens and once for the positions, and each gradient row with a token read and written
 * once. It does not grow with V.
 * Arrays on the stream's device and the caller's. Each call queues its work on the stream and
 * returns 0, or the cudaError_t of a launch that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_EMBEDDING_CUDA_H
#define RUBATO_KERNELS_CUDA_EMBEDDING_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

struct embedding_cuda {
    int64_t B, T, C; /* B * T < 2^31 */
    struct CUstream_st *stream;
};

/* y [B, T, C] = wte [V, C][token] + wpe [T.., C][t]; wpe NULL: nothing is added. */
int embedding_cuda_forward(const struct embedding_cuda *shape, const int32_t *tokens,
                           const float *wte, const float *wpe, float *y);

/* dwte [V, C] and dwpe [T.., C] += dy [B, T, C]; dwpe may be NULL; scratch
 * [embedding_cuda_scratch(B * T, C)] floats. */
int embedding_cuda_backward_add(const struct embedding_cuda *shape, const int32_t *tokens,
                                const float *dy, float *dwte, float *dwpe, float *scratch);
int64_t embedding_cuda_scratch(int64_t rows, int64_t C);

#ifdef __cplusplus
}
#endif
#endif
