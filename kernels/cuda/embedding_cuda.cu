/* embedding_cuda.cu - forward: a thread a pack. Backward of the positions: a thread a pack of a
 * position, in the order of the sequences. Backward of the tokens in three steps: the rows sorted
 * by token, the sums of runs within pieces of the sorted rows, and those of runs that pieces share.
 */
#include "kernels/cuda/embedding_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"

enum {
    THREADS = 256,
    SORTED = 128,    // rows that a block of the sort finds the places of, and compares with at once
    PIECE_ROWS = 32, // sorted rows that are summed at a time
    AHEAD = 4        // rows loaded ahead of their sum
};

template <int N>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(const int32_t *tokens, const float *wte, const float *wpe, float *y, int64_t B,
                   int64_t T, int64_t C) {
    const int64_t c = pack_column<N>();
    if (c >= C) return;
    for (int64_t t = blockIdx.y; t < T; t += gridDim.y) {
        pack<N> place = {};
        if (wpe != nullptr) place = pack_load<N>(wpe + t * C + c);
        for (int64_t b = blockIdx.z; b < B; b += gridDim.z) {
            const int64_t row = b * T + t;
            pack<N> v = pack_load<N>(wte + tokens[row] * C + c);
            for (int i = 0; wpe != nullptr && i < N;
                 i++) // not + 0, which would lose the sign of -0
                v.lane[i] += place.lane[i];
            pack_store(y + row * C + c, v);
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(THREADS)
    places_kernel(const float *dy, float *dwpe, int64_t B, int64_t T, int64_t C) {
    const int64_t c = pack_column<N>();
    if (c >= C) return;
    for (int64_t t = blockIdx.y; t < T; t += gridDim.y) {
        pack<N> sum = pack_load<N>(dwpe + t * C + c);
        for (int64_t b = 0; b < B; b++) {
            const pack<N> d = pack_load<N>(dy + (b * T + t) * C + c);
            for (int i = 0; i < N; i++)
                sum.lane[i] += d.lane[i];
        }
        pack_store(dwpe + t * C + c, sum);
    }
}

// order [rows]: the rows by token, those of one token in their own order. A row's place is the
// number of rows ahead of it: smaller tokens, and equal ones that come before.
static __global__ void __launch_bounds__(SORTED)
    sort_kernel(const int32_t *tokens, int32_t *order, int64_t rows) {
    __shared__ int4 tile[SORTED / 4];
    int32_t *const others = (int32_t *)tile;
    const int64_t row = (int64_t)blockIdx.x * SORTED + threadIdx.x;
    const int32_t token = row < rows ? tokens[row] : 0;
    int32_t place = 0;
    for (int64_t turn = 0; turn < gridDim.x; turn++) {
        const int64_t other = turn * SORTED + threadIdx.x;
        __syncthreads();
        others[threadIdx.x] = other < rows ? tokens[other] : INT32_MAX;
        __syncthreads();
        if (turn == blockIdx.x) {
            for (int i = 0; i < SORTED; i++)
                place += others[i] < token + (i < (int)threadIdx.x);
            continue;
        }
        const int32_t limit = token + (turn < blockIdx.x);
        for (int i = 0; i < SORTED / 4; i++)
            place += (tile[i].x < limit) + (tile[i].y < limit) + (tile[i].z < limit) +
                     (tile[i].w < limit);
    }
    if (row < rows) order[place] = (int32_t)row;
}

// Rows begin..end-1 of the order, and the tokens of those beside them; -1 where there are none.
struct piece {
    int64_t begin, end;
    int32_t before, last, behind;
};

static __device__ __forceinline__ struct piece piece_of(int64_t index, const int32_t *tokens,
                                                        const int32_t *order, int64_t rows) {
    struct piece piece = {index * PIECE_ROWS, (index + 1) * PIECE_ROWS, -1, 0, -1};
    if (piece.end > rows) piece.end = rows;
    if (piece.begin > 0) piece.before = tokens[order[piece.begin - 1]];
    piece.last = tokens[order[piece.end - 1]];
    if (piece.end < rows) piece.behind = tokens[order[piece.end]];
    return piece;
}

template <int N> static __device__ __forceinline__ void add_to(float *to, pack<N> sum) {
    pack<N> v = pack_load<N>(to);
    for (int i = 0; i < N; i++)
        v.lane[i] += sum.lane[i];
    pack_store(to, v);
}

// A run's sum goes to its gradient row where the run is the piece's alone. partial [pieces, 2, C]
// takes the others': first of the run that pieces before have begun, then of one that is begun here
// and goes on behind.
template <int N>
static __global__ void __launch_bounds__(THREADS)
    runs_kernel(const int32_t *tokens, const int32_t *order, const float *dy, float *dwte,
                float *partial, int64_t rows, int64_t C) {
    const int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (c >= C) return;
    const struct piece piece = piece_of(blockIdx.x, tokens, order, rows);
    float *const shared = partial + (int64_t)blockIdx.x * 2 * C + c;
    pack<N> sum = {};
    for (int64_t k = piece.begin; k < piece.end; k += AHEAD) {
        int32_t token[AHEAD + 1];
        pack<N> d[AHEAD];
        for (int a = 0; a <= AHEAD; a++)
            token[a] = k + a < piece.end ? tokens[order[k + a]] : -1;
        for (int a = 0; a < AHEAD; a++)
            if (token[a] >= 0) d[a] = pack_load<N>(dy + order[k + a] * C + c);
        for (int a = 0; a < AHEAD; a++) {
            if (token[a] < 0) continue;
            for (int i = 0; i < N; i++)
                sum.lane[i] += d[a].lane[i];
            if (token[a] == token[a + 1]) continue;
            if (token[a] == piece.before)
                pack_store(shared, sum);
            else if (token[a] == piece.behind)
                pack_store(shared + C, sum);
            else
                add_to(dwte + token[a] * C + c, sum);
            sum = {};
        }
    }
}

// The piece in which a run begins adds what it and the pieces behind have of it. The last of those
// is found by halving, so that their sums are loaded side by side.
template <int N>
static __global__ void __launch_bounds__(THREADS)
    joins_kernel(const int32_t *tokens, const int32_t *order, const float *partial, float *dwte,
                 int64_t rows, int64_t C) {
    const int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    const struct piece piece = piece_of(blockIdx.x, tokens, order, rows);
    if (c >= C || piece.behind != piece.last || piece.before == piece.last) return;
    int64_t last = (int64_t)blockIdx.x + 1, end = gridDim.x;
    while (last + 1 < end) {
        const int64_t middle = (last + end) / 2;
        if (tokens[order[middle * PIECE_ROWS]] == piece.last)
            last = middle;
        else
            end = middle;
    }
    pack<N> sum = pack_load<N>(partial + ((int64_t)blockIdx.x * 2 + 1) * C + c);
#pragma unroll 8
    for (int64_t index = (int64_t)blockIdx.x + 1; index <= last; index++) {
        const pack<N> part = pack_load<N>(partial + index * 2 * C + c);
        for (int i = 0; i < N; i++)
            sum.lane[i] += part.lane[i];
    }
    add_to(dwte + piece.last * C + c, sum);
}

static int64_t divide_up(int64_t count, int64_t by) {
    return (count + by - 1) / by;
}

// Places in scratch ahead of the partial sums, which begin at a multiple of 256 bytes.
static int64_t order_places(int64_t rows) {
    return divide_up(rows, 64) * 64;
}

template <int N>
static cudaError_t forward(const struct embedding_cuda *shape, const int32_t *tokens,
                           const float *wte, const float *wpe, float *y) {
    const int64_t B = shape->B, T = shape->T, C = shape->C, most = 65535;
    const dim3 threads = kernel_threads(C / N, THREADS);
    dim3 grid = kernel_rows(T, C / N, threads);
    grid.z = (unsigned)(B < most ? B : most);
    return kernel_launch(forward_kernel<N>, grid, threads, 0, shape->stream, tokens, wte, wpe, y, B,
                         T, C);
}

int embedding_cuda_forward(const struct embedding_cuda *shape, const int32_t *tokens,
                           const float *wte, const float *wpe, float *y) {
    return packable(shape->C, wte, wpe, y) ? forward<4>(shape, tokens, wte, wpe, y)
                                           : forward<1>(shape, tokens, wte, wpe, y);
}

template <int N>
static cudaError_t add_runs(const struct embedding_cuda *shape, const int32_t *tokens,
                            const float *dy, float *dwte, float *scratch) {
    const int64_t rows = shape->B * shape->T, C = shape->C;
    int32_t *order = (int32_t *)scratch;
    float *partial = scratch + order_places(rows);
    cudaError_t error = kernel_launch(sort_kernel, dim3((unsigned)divide_up(rows, SORTED)),
                                      dim3(SORTED), 0, shape->stream, tokens, order, rows);
    if (error != cudaSuccess) return error;
    const dim3 threads = kernel_threads(C / N, THREADS);
    const dim3 grid((unsigned)divide_up(rows, PIECE_ROWS), (unsigned)divide_up(C / N, threads.x));
    error = kernel_launch(runs_kernel<N>, grid, threads, 0, shape->stream, tokens, order, dy, dwte,
                          partial, rows, C);
    if (error != cudaSuccess) return error;
    return kernel_launch(joins_kernel<N>, grid, threads, 0, shape->stream, tokens, order, partial,
                         dwte, rows, C);
}

template <int N>
static cudaError_t backward_add(const struct embedding_cuda *shape, const int32_t *tokens,
                                const float *dy, float *dwte, float *dwpe, float *scratch) {
    const cudaError_t error = add_runs<N>(shape, tokens, dy, dwte, scratch);
    if (error != cudaSuccess || dwpe == nullptr) return error;
    const dim3 threads = kernel_threads(shape->C / N, THREADS);
    return kernel_launch(places_kernel<N>, kernel_rows(shape->T, shape->C / N, threads), threads, 0,
                         shape->stream, dy, dwpe, shape->B, shape->T, shape->C);
}

int embedding_cuda_backward_add(const struct embedding_cuda *shape, const int32_t *tokens,
                                const float *dy, float *dwte, float *dwpe, float *scratch) {
    return packable(shape->C, dy, dwte, dwpe, scratch)
               ? backward_add<4>(shape, tokens, dy, dwte, dwpe, scratch)
               : backward_add<1>(shape, tokens, dy, dwte, dwpe, scratch);
}

int64_t embedding_cuda_scratch(int64_t rows, int64_t C) {
    return order_places(rows) + divide_up(rows, PIECE_ROWS) * 2 * C;
}
