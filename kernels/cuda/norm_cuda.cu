/* norm_cuda.cu - a block of 256 threads a row; parameters' gradients in two steps, each thread a
 * column: sums over pieces of 64 rows, then over the pieces.
 */
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm_cuda.h"

enum { THREADS = 256, PIECE_ROWS = 64 };

// CENTRED: layer norm, else root mean square norm, which has neither mean nor bias.
template <bool CENTRED>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(const float *x, const float *gain, const float *bias, float *y, float *mean,
                   float *rstd, int64_t C, float eps) {
    const int64_t row = blockIdx.x;
    const float *from = x + row * C;
    float centre = 0.0F, squares = 0.0F;
    if (CENTRED) {
        float sum = 0.0F;
        for (int64_t c = threadIdx.x; c < C; c += THREADS)
            sum += from[c];
        centre = block_sum(sum) / (float)C;
    }
    for (int64_t c = threadIdx.x; c < C; c += THREADS)
        squares += (from[c] - centre) * (from[c] - centre);
    const float scale = rsqrtf(block_sum(squares) / (float)C + eps);
    for (int64_t c = threadIdx.x; c < C; c += THREADS)
        y[row * C + c] = (from[c] - centre) * scale * gain[c] + (CENTRED ? bias[c] : 0.0F);
    if (threadIdx.x != 0) return;
    if (CENTRED) mean[row] = centre;
    rstd[row] = scale;
}

// With n = (x - mean) * rstd and d = dy * gain: dx += rstd * (d - mean(d) - n * mean(d * n)).
template <bool CENTRED>
static __global__ void __launch_bounds__(THREADS)
    input_gradient_kernel(const float *x, const float *mean, const float *rstd, const float *gain,
                          const float *dy, float *dx, int64_t C) {
    const int64_t row = blockIdx.x;
    const float centre = CENTRED ? mean[row] : 0.0F, scale = rstd[row];
    const float *from = x + row * C, *d = dy + row * C;
    float sum = 0.0F, dot = 0.0F;
    for (int64_t c = threadIdx.x; c < C; c += THREADS) {
        const float part = d[c] * gain[c];
        sum += part;
        dot += part * ((from[c] - centre) * scale);
    }
    const float sum_mean = CENTRED ? block_sum(sum) / (float)C : 0.0F;
    const float dot_mean = block_sum(dot) / (float)C;
    for (int64_t c = threadIdx.x; c < C; c += THREADS) {
        const float n = (from[c] - centre) * scale;
        dx[row * C + c] += scale * (d[c] * gain[c] - sum_mean - n * dot_mean);
    }
}

// scratch [pieces, 2, C]: sums of dy * n and, where CENTRED, of dy over a piece's rows.
template <bool CENTRED>
static __global__ void __launch_bounds__(THREADS)
    piece_sums_kernel(const float *x, const float *mean, const float *rstd, const float *dy,
                      float *scratch, int64_t R, int64_t C) {
    const int64_t c = (int64_t)blockIdx.y * THREADS + threadIdx.x, piece = blockIdx.x;
    if (c >= C) return;
    const int64_t first = piece * PIECE_ROWS;
    const int64_t end = first + PIECE_ROWS < R ? first + PIECE_ROWS : R;
    float gain_sum = 0.0F, bias_sum = 0.0F;
    for (int64_t r = first; r < end; r++) {
        const float d = dy[r * C + c], centre = CENTRED ? mean[r] : 0.0F;
        gain_sum += d * ((x[r * C + c] - centre) * rstd[r]);
        bias_sum += d;
    }
    scratch[piece * 2 * C + c] = gain_sum;
    if (CENTRED) scratch[piece * 2 * C + C + c] = bias_sum;
}

template <bool CENTRED>
static __global__ void __launch_bounds__(THREADS)
    parameter_gradients_kernel(const float *scratch, float *dgain, float *dbias, int64_t pieces,
                               int64_t C) {
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= C) return;
    float gain_sum = 0.0F, bias_sum = 0.0F;
    for (int64_t piece = 0; piece < pieces; piece++) {
        gain_sum += scratch[piece * 2 * C + c];
        if (CENTRED) bias_sum += scratch[piece * 2 * C + C + c];
    }
    dgain[c] += gain_sum;
    if (CENTRED) dbias[c] += bias_sum;
}

static int64_t divide_up(int64_t count, int64_t by) {
    return (count + by - 1) / by;
}

template <bool CENTRED>
static cudaError_t backward_add(const struct norm_cuda *norm, const struct norm_cuda_saved *saved,
                                const float *dy, const struct norm_cuda_gradients *gradients) {
    const int64_t R = norm->R, C = norm->C, pieces = divide_up(R, PIECE_ROWS);
    const unsigned columns = (unsigned)divide_up(C, THREADS);
    cudaError_t error = kernel_launch(input_gradient_kernel<CENTRED>, dim3((unsigned)R),
                                      dim3(THREADS), 0, norm->stream, saved->x, saved->mean,
                                      saved->rstd, saved->gain, dy, gradients->dx, C);
    if (error != cudaSuccess) return error;
    error = kernel_launch(piece_sums_kernel<CENTRED>, dim3((unsigned)pieces, columns),
                          dim3(THREADS), 0, norm->stream, saved->x, saved->mean, saved->rstd, dy,
                          gradients->scratch, R, C);
    if (error != cudaSuccess) return error;
    return kernel_launch(parameter_gradients_kernel<CENTRED>, dim3(columns), dim3(THREADS), 0,
                         norm->stream, gradients->scratch, gradients->dgain, gradients->dbias,
                         pieces, C);
}

int norm_cuda_forward(const struct norm_cuda *norm, const float *x, const float *gain,
                      const float *bias, float *y, float *mean, float *rstd) {
    return kernel_launch(forward_kernel<true>, dim3((unsigned)norm->R), dim3(THREADS), 0,
                         norm->stream, x, gain, bias, y, mean, rstd, norm->C, norm->eps);
}

int norm_cuda_rms_forward(const struct norm_cuda *norm, const float *x, const float *gain, float *y,
                          float *rstd) {
    return kernel_launch(forward_kernel<false>, dim3((unsigned)norm->R), dim3(THREADS), 0,
                         norm->stream, x, gain, nullptr, y, nullptr, rstd, norm->C, norm->eps);
}

int norm_cuda_backward_add(const struct norm_cuda *norm, const struct norm_cuda_saved *saved,
                           const float *dy, const struct norm_cuda_gradients *gradients) {
    return saved->mean != nullptr ? backward_add<true>(norm, saved, dy, gradients)
                                  : backward_add<false>(norm, saved, dy, gradients);
}

int64_t norm_cuda_scratch(int64_t R, int64_t C) {
    return divide_up(R, PIECE_ROWS) * 2 * C;
}
