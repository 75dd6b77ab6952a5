#include "kernels/linear_convert.h"

#include "kernels/dispatch.h"

#include <string.h>

enum {
    SQUARE = 64,           /* rows and columns of weights that are converted at a time */
    PARALLEL_MIN = 1 << 15 /* values below which waking threads costs more than it saves */
};
_Static_assert(SQUARE == (int)PACK_COLS && SQUARE == 2 * (int)PACK_INNER,
               "a square is two tiles each way");

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The upper half is the result. Adding the NaN's payload could carry it into infinity. */
static inline uint32_t rounded(uint32_t bits) {
    uint32_t up = bits + 0x7fff + ((bits >> 16) & 1);
    uint32_t quiet = bits | 0x400000;
    return (bits & 0x7fffffff) > 0x7f800000 ? quiet : up;
}

KERNEL_CLONES static void to_bf16(const float *restrict from, uint16_t *restrict to, int64_t N) {
    for (int64_t i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        to[i] = (uint16_t)(rounded(bits) >> 16);
    }
}

KERNEL_CLONES static void round_bf16(const float *restrict from, float *restrict to, int64_t N) {
    for (int64_t i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        bits = rounded(bits) & 0xffff0000;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

void linear_to_bf16(const float *from, int64_t stride, uint16_t *to, int64_t rows, int64_t cols) {
#pragma omp parallel for if (rows * cols >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        to_bf16(from + r * stride, to + r * cols, cols);
}

void linear_round_bf16(const float *from, int64_t stride, float *to, int64_t rows, int64_t cols) {
#pragma omp parallel for if (rows * cols >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        round_bf16(from + r * stride, to + r * cols, cols);
}

/* from [rows <= 64, cols <= 64] -> square [64][64], zeros beyond. */
KERNEL_CLONES static void square_fill(const float *restrict from, int64_t stride, int64_t rows,
                                      int64_t cols, uint16_t *restrict square) {
    if (rows < SQUARE || cols < SQUARE) memset(square, 0, sizeof *square * SQUARE * SQUARE);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            uint32_t bits;
            memcpy(&bits, &from[r * stride + c], sizeof bits);
            square[r * SQUARE + c] = (uint16_t)(rounded(bits) >> 16);
        }
    }
}

/* 32 rows of a square -> a tile: two rows become a row of pairs. */
KERNEL_CLONES static void tile_down(const uint16_t *restrict rows, uint32_t *restrict pairs) {
    for (int64_t i = 0; i < PACK_INNER / 2; i++) {
        const uint16_t *first = rows + 2 * i * SQUARE;
        const uint16_t *second = first + SQUARE;
        for (int64_t j = 0; j < PACK_COLS; j++)
            pairs[i * PACK_COLS + j] = first[j] | (uint32_t)second[j] << 16;
    }
}

/* 32 columns of a square, which are 16 pairs as they lie -> a tile: the pairs transposed. */
KERNEL_CLONES static void tile_across(const uint32_t *restrict columns, uint32_t *restrict pairs) {
    for (int64_t i = 0; i < PACK_INNER / 2; i++) {
        for (int64_t j = 0; j < PACK_COLS; j++)
            pairs[i * PACK_COLS + j] = columns[j * (SQUARE / 2) + i];
    }
}

static uint32_t *tile_at(const struct packed_matrix *packed, int64_t inner, int64_t cols) {
    return (uint32_t *)(void *)(packed->values + inner / PACK_INNER * packed->inner_step +
                                cols / PACK_COLS * packed->cols_step);
}

/* The square at (row, col). Tiles that are nothing but filling do not exist. */
static void pack_square(const float *from, const struct packed_matrix *down,
                        const struct packed_matrix *across, int64_t row, int64_t col) {
    union {
        uint16_t values[SQUARE * SQUARE];
        uint32_t pairs[SQUARE * SQUARE / 2];
    } square;
    const int64_t rows = down->inner;
    const int64_t cols = down->cols;
    square_fill(from + row * cols + col, cols, smaller(SQUARE, rows - row),
                smaller(SQUARE, cols - col), square.values);
    for (int64_t half = 0; half < SQUARE; half += PACK_INNER) {
        if (down->values && row + half < rows)
            tile_down(square.values + half * SQUARE, tile_at(down, row + half, col));
        if (across->values && col + half < cols)
            tile_across(square.pairs + half / 2, tile_at(across, col + half, row));
    }
}

void linear_pack(const float *from, const struct packed_matrix *down,
                 const struct packed_matrix *across) {
    const int64_t rows = down->inner;
    const int64_t cols = down->cols;
#pragma omp parallel for collapse(2) if (rows * cols >= PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row += SQUARE) {
        for (int64_t col = 0; col < cols; col += SQUARE)
            pack_square(from, down, across, row, col);
    }
}
