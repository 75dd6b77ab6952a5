/* norm_cuda.cu - forward and the inputs' gradients: a block a row, a thread packs of it. Forward
 * keeps the row in shared memory, where a thread reads only what it wrote. The parameters'
 * gradients in two steps, each thread a column: sums over pieces of 64 rows, then over the pieces.
 */
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm_cuda.h"
#include "kernels/cuda/pack.cuh"

enum {
    THREADS = 256,
    PIECE_ROWS = 64,
    // Values of a row kept in shared memory; longer ones are read again. With block_sum()'s, these
    // are the 48 KiB that a block has unless more is asked for.
    KEPT_MAX = (48 << 10) / (int)sizeof(float) - BLOCK_WARPS_MAX,
    COLUMNS = 32,             // of a block that sums over pieces: a warp's,
    TURNS = THREADS / COLUMNS // and each of its warps takes every TURNS-th piece
};

// CENTRED: layer norm, else root mean square norm, which has neither mean nor bias. Ten parameters,
// since arrays are direct arguments.
template <int N, bool CENTRED>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(const float *x, const float *branch, float *sum, const float *gain,
                   const float *bias, float *y, float *mean, float *rstd, int64_t C, float eps) {
    DYNAMIC_SHARED unsigned char dynamic_shared[];
    float *kept = C <= KEPT_MAX ? (float *)dynamic_shared : nullptr;
    const int64_t start = blockIdx.x * C, step = blockDim.x * N;
    float total = 0.0F, centre = 0.0F, squares = 0.0F;
    for (int64_t c = threadIdx.x * N; c < C; c += step) {
        pack<N> v = pack_load<N>(x + start + c);
        if (branch != nullptr) {
            const pack<N> add = pack_load<N>(branch + start + c);
            for (int i = 0; i < N; i++)
                v.lane[i] += add.lane[i];
            pack_store(sum + start + c, v);
        }
        if (kept != nullptr) pack_store(kept + c, v);
        for (int i = 0; i < N; i++) {
            total += v.lane[i];
            squares += v.lane[i] * v.lane[i];
        }
    }
    const float *row = kept != nullptr ? kept : (branch != nullptr ? sum : x) + start;
    if (CENTRED) { // squares of distances, not their mean from sums: nothing cancels
        centre = block_sum(total) / (float)C;
        squares = 0.0F;
        for (int64_t c = threadIdx.x * N; c < C; c += step) {
            const pack<N> v = pack_load<N>(row + c);
            for (int i = 0; i < N; i++)
                squares += (v.lane[i] - centre) * (v.lane[i] - centre);
        }
    }
    const float scale = rsqrtf(block_sum(squares) / (float)C + eps);
    for (int64_t c = threadIdx.x * N; c < C; c += step) {
        pack<N> v = pack_load<N>(row + c);
        const pack<N> by = pack_load<N>(gain + c);
        pack<N> add = {};
        if (CENTRED) add = pack_load<N>(bias + c);
        for (int i = 0; i < N; i++)
            v.lane[i] = (v.lane[i] - centre) * scale * by.lane[i] + add.lane[i];
        pack_store(y + start + c, v);
    }
    if (threadIdx.x != 0) return;
    if (CENTRED) mean[blockIdx.x] = centre;
    rstd[blockIdx.x] = scale;
}

// With n = (x - mean) * rstd and d = dy * gain: dx += rstd * (d - mean(d) - n * mean(d * n)).
template <int N, bool CENTRED>
static __global__ void __launch_bounds__(THREADS)
    input_gradient_kernel(const float *x, const float *mean, const float *rstd, const float *gain,
                          const float *dy, float *dx, int64_t C) {
    const int64_t start = blockIdx.x * C, step = blockDim.x * N;
    const float centre = CENTRED ? mean[blockIdx.x] : 0.0F, scale = rstd[blockIdx.x];
    float sum = 0.0F, dot = 0.0F;
    for (int64_t c = threadIdx.x * N; c < C; c += step) {
        const pack<N> v = pack_load<N>(x + start + c), d = pack_load<N>(dy + start + c);
        const pack<N> by = pack_load<N>(gain + c);
        for (int i = 0; i < N; i++) {
            const float part = d.lane[i] * by.lane[i];
            sum += part;
            dot += part * ((v.lane[i] - centre) * scale);
        }
    }
    const float sum_mean = CENTRED ? block_sum(sum) / (float)C : 0.0F;
    const float dot_mean = block_sum(dot) / (float)C;
    for (int64_t c = threadIdx.x * N; c < C; c += step) {
        const pack<N> v = pack_load<N>(x + start + c), d = pack_load<N>(dy + start + c);
        const pack<N> by = pack_load<N>(gain + c);
        pack<N> to = pack_load<N>(dx + start + c);
        for (int i = 0; i < N; i++) {
            const float n = (v.lane[i] - centre) * scale;
            to.lane[i] += scale * (d.lane[i] * by.lane[i] - sum_mean - n * dot_mean);
        }
        pack_store(dx + start + c, to);
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

// dbias NULL: the root mean square norm.
static __global__ void __launch_bounds__(THREADS)
    parameter_gradients_kernel(const float *scratch, float *dgain, float *dbias, int64_t pieces,
                               int64_t C) {
    __shared__ float sums[2][TURNS][COLUMNS];
    const unsigned column = threadIdx.x % COLUMNS, turn = threadIdx.x / COLUMNS;
    const int64_t c = (int64_t)blockIdx.x * COLUMNS + column;
    float gain_sum = 0.0F, bias_sum = 0.0F;
    for (int64_t piece = turn; c < C && piece < pieces; piece += TURNS) {
        gain_sum += scratch[piece * 2 * C + c];
        if (dbias != nullptr) bias_sum += scratch[piece * 2 * C + C + c];
    }
    sums[0][turn][column] = gain_sum;
    sums[1][turn][column] = bias_sum;
    __syncthreads();
    if (turn != 0 || c >= C) return;
    for (int other = 1; other < TURNS; other++) {
        gain_sum += sums[0][other][column];
        bias_sum += sums[1][other][column];
    }
    dgain[c] += gain_sum;
    if (dbias != nullptr) dbias[c] += bias_sum;
}

static int64_t divide_up(int64_t count, int64_t by) {
    return (count + by - 1) / by;
}

template <int N, bool CENTRED>
static cudaError_t forward(const struct norm_cuda *norm, const struct residual *residual,
                           const float *gain, const float *bias, const struct norm_result *result) {
    const int64_t C = norm->C;
    return kernel_launch(
        forward_kernel<N, CENTRED>, dim3((unsigned)norm->R), kernel_threads(C / N, THREADS),
        C <= KEPT_MAX ? (size_t)C * sizeof(float) : 0, norm->stream, residual->x, residual->branch,
        residual->sum, gain, bias, result->y, result->mean, result->rstd, C, norm->eps);
}

int norm_cuda_forward(const struct norm_cuda *norm, const struct residual *residual,
                      const float *gain, const float *bias, const struct norm_result *result) {
    struct residual used = *residual;
    if (used.branch == nullptr) used.sum = nullptr;
    const bool packs = packable(norm->C, used.x, used.branch, used.sum, gain, bias, result->y);
    if (result->mean != nullptr)
        return packs ? forward<4, true>(norm, &used, gain, bias, result)
                     : forward<1, true>(norm, &used, gain, bias, result);
    return packs ? forward<4, false>(norm, &used, gain, bias, result)
                 : forward<1, false>(norm, &used, gain, bias, result);
}

template <int N, bool CENTRED>
static cudaError_t input_gradient(const struct norm_cuda *norm, const struct norm_saved *saved,
                                  const float *dy, float *dx) {
    return kernel_launch(input_gradient_kernel<N, CENTRED>, dim3((unsigned)norm->R),
                         kernel_threads(norm->C / N, THREADS), 0, norm->stream, saved->x,
                         saved->mean, saved->rstd, saved->gain, dy, dx, norm->C);
}

template <bool CENTRED>
static cudaError_t backward_add(const struct norm_cuda *norm, const struct norm_saved *saved,
                                const float *dy, float *dx, float *dgain, float *dbias,
                                float *scratch) {
    const int64_t R = norm->R, C = norm->C, pieces = divide_up(R, PIECE_ROWS);
    const dim3 grid((unsigned)pieces, (unsigned)divide_up(C, THREADS));
    cudaError_t error = packable(C, saved->x, saved->gain, dy, dx)
                            ? input_gradient<4, CENTRED>(norm, saved, dy, dx)
                            : input_gradient<1, CENTRED>(norm, saved, dy, dx);
    if (error != cudaSuccess) return error;
    error = kernel_launch(piece_sums_kernel<CENTRED>, grid, dim3(THREADS), 0, norm->stream,
                          saved->x, saved->mean, saved->rstd, dy, scratch, R, C);
    if (error != cudaSuccess) return error;
    return kernel_launch(parameter_gradients_kernel, dim3((unsigned)divide_up(C, COLUMNS)),
                         dim3(THREADS), 0, norm->stream, scratch, dgain, dbias, pieces, C);
}

int norm_cuda_backward_add(const struct norm_cuda *norm, const struct norm_saved *saved,
                           const float *dy, float *dx, float *dgain, float *dbias, float *scratch) {
    return saved->mean != nullptr ? backward_add<true>(norm, saved, dy, dx, dgain, dbias, scratch)
                                  : backward_add<false>(norm, saved, dy, dx, dgain, dbias, scratch);
}

int64_t norm_cuda_scratch(int64_t R, int64_t C) {
    return divide_up(R, PIECE_ROWS) * 2 * C;
}
