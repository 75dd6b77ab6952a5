/* cast_cuda.cu - a thread has 4 values of a row where all rows are aligned for it, else one. Column
 * sums in two steps, each thread a column.
 */
#include "kernels/cuda/cast_cuda.h"
#include "kernels/cuda/launch.cuh"

enum { THREADS = 256, PIECE_ROWS = 64 };

template <class T, int WIDTH> struct alignas(sizeof(T) * WIDTH) lanes { T values[WIDTH]; };

// The upper half is the result. Adding the payload of a NaN could carry it into infinity.
static __device__ __forceinline__ uint16_t to_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned up = bits + 0x7fffU + (bits >> 16 & 1U), quiet = bits | 0x400000U;
    return (uint16_t)(((bits & 0x7fffffffU) > 0x7f800000U ? quiet : up) >> 16);
}

// WIDTH divides cols and both strides.
template <int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    to_bf16_kernel(const float *from, int64_t stride, uint16_t *to, int64_t to_stride, int64_t rows,
                   int64_t cols) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
    for (int64_t r = blockIdx.y; r < rows && c < cols; r += gridDim.y) {
        const auto in = *(const lanes<float, WIDTH> *)(from + r * stride + c);
        lanes<uint16_t, WIDTH> out;
        for (int i = 0; i < WIDTH; i++)
            out.values[i] = to_bf16(in.values[i]);
        *(lanes<uint16_t, WIDTH> *)(to + r * to_stride + c) = out;
    }
}

// WIDTH divides count.
template <int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    from_bf16_kernel(const uint16_t *from, float *to, int64_t count) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x * WIDTH;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
    for (; i < count; i += step) {
        const auto in = *(const lanes<uint16_t, WIDTH> *)(from + i);
        lanes<float, WIDTH> out;
        for (int j = 0; j < WIDTH; j++)
            out.values[j] = __uint_as_float((unsigned)in.values[j] << 16);
        *(lanes<float, WIDTH> *)(to + i) = out;
    }
}

template <int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    add_bias_kernel(const float *bias, float *y, int64_t stride, int64_t rows, int64_t cols) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
    for (int64_t r = blockIdx.y; r < rows && c < cols; r += gridDim.y) {
        const auto add = *(const lanes<float, WIDTH> *)(bias + c);
        auto *at = (lanes<float, WIDTH> *)(y + r * stride + c);
        lanes<float, WIDTH> sum = *at;
        for (int i = 0; i < WIDTH; i++)
            sum.values[i] += add.values[i];
        *at = sum;
    }
}

// scratch [pieces, cols]: sums over a piece's rows.
static __global__ void __launch_bounds__(THREADS)
    piece_sums_kernel(const float *dy, int64_t stride, float *scratch, int64_t rows, int64_t cols) {
    const int64_t c = (int64_t)blockIdx.y * THREADS + threadIdx.x, piece = blockIdx.x;
    if (c >= cols) return;
    const int64_t first = piece * PIECE_ROWS;
    const int64_t end = first + PIECE_ROWS < rows ? first + PIECE_ROWS : rows;
    float sum = 0.0F;
    for (int64_t r = first; r < end; r++)
        sum += dy[r * stride + c];
    scratch[piece * cols + c] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    sum_pieces_kernel(const float *scratch, float *dbias, bool add, int64_t pieces, int64_t cols) {
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= cols) return;
    float sum = 0.0F;
    for (int64_t piece = 0; piece < pieces; piece++)
        sum += scratch[piece * cols + c];
    dbias[c] = add ? dbias[c] + sum : sum;
}

static int64_t divide_up(int64_t count, int64_t by) {
    return (count + by - 1) / by;
}

// Whether each row of `width` values at a time is aligned for it.
static bool aligned(const void *values, size_t value_bytes, int64_t stride, int64_t cols,
                    int width) {
    return (uintptr_t)values % (value_bytes * (size_t)width) == 0 && stride % width == 0 &&
           cols % width == 0;
}

template <int WIDTH>
static cudaError_t launch_to_bf16(const struct cast_cuda *cast, const float *from, uint16_t *to,
                                  int64_t to_stride) {
    const dim3 threads = kernel_threads(cast->cols / WIDTH, THREADS);
    return kernel_launch(to_bf16_kernel<WIDTH>,
                         kernel_rows(cast->rows, cast->cols / WIDTH, threads), threads, 0,
                         cast->stream, from, cast->stride, to, to_stride, cast->rows, cast->cols);
}

int cast_cuda_to_bf16(const struct cast_cuda *cast, const float *from, uint16_t *to,
                      int64_t to_stride) {
    struct cast_cuda all = *cast;
    // Rows without gaps are one row, however short they are.
    if (cast->stride == cast->cols && to_stride == cast->cols) {
        all.rows = 1;
        all.cols = all.stride = to_stride = cast->rows * cast->cols;
    }
    if (aligned(from, sizeof *from, all.stride, all.cols, 4) &&
        aligned(to, sizeof *to, to_stride, all.cols, 4))
        return launch_to_bf16<4>(&all, from, to, to_stride);
    return launch_to_bf16<1>(&all, from, to, to_stride);
}

template <int WIDTH>
static cudaError_t launch_from_bf16(const uint16_t *from, float *to, int64_t count,
                                    cudaStream_t stream) {
    return kernel_launch(from_bf16_kernel<WIDTH>, kernel_blocks(count / WIDTH, THREADS),
                         dim3(THREADS), 0, stream, from, to, count);
}

int cast_cuda_from_bf16(const uint16_t *from, float *to, int64_t count,
                        struct CUstream_st *stream) {
    if (aligned(from, sizeof *from, count, count, 4) && aligned(to, sizeof *to, count, count, 4))
        return launch_from_bf16<4>(from, to, count, stream);
    return launch_from_bf16<1>(from, to, count, stream);
}

template <int WIDTH>
static cudaError_t launch_add_bias(const struct cast_cuda *cast, const float *bias, float *y) {
    const dim3 threads = kernel_threads(cast->cols / WIDTH, THREADS);
    return kernel_launch(add_bias_kernel<WIDTH>,
                         kernel_rows(cast->rows, cast->cols / WIDTH, threads), threads, 0,
                         cast->stream, bias, y, cast->stride, cast->rows, cast->cols);
}

int cast_cuda_add_bias(const struct cast_cuda *cast, const float *bias, float *y) {
    if (aligned(y, sizeof *y, cast->stride, cast->cols, 4) &&
        aligned(bias, sizeof *bias, cast->cols, cast->cols, 4))
        return launch_add_bias<4>(cast, bias, y);
    return launch_add_bias<1>(cast, bias, y);
}

int64_t cast_cuda_scratch(int64_t rows, int64_t cols) {
    return divide_up(rows, PIECE_ROWS) * cols;
}

int cast_cuda_column_sums(const struct cast_cuda *cast, const float *dy, float *dbias, bool add,
                          float *scratch) {
    const int64_t pieces = divide_up(cast->rows, PIECE_ROWS);
    const unsigned columns = (unsigned)divide_up(cast->cols, THREADS);
    cudaError_t error =
        kernel_launch(piece_sums_kernel, dim3((unsigned)pieces, columns), dim3(THREADS), 0,
                      cast->stream, dy, cast->stride, scratch, cast->rows, cast->cols);
    if (error != cudaSuccess) return error;
    return kernel_launch(sum_pieces_kernel, dim3(columns), dim3(THREADS), 0, cast->stream, scratch,
                         dbias, add, pieces, cast->cols);
}
