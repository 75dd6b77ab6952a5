/* tile_matmul_block.h - the body of tile_matmul_*.c, for a width of vectors that the file sets.
 *
 * TILE_LANES: floats in a vector. TILE_ROWS: rows of a block; TILE_ROWS * 2 sums, two vectors of B
 * and a value of A are to fit in the chip's vector registers.
 * Internal to kernels/tile_matmul_*.c. The defaults are for 16 registers of 128 bits.
 */
#ifndef RUBATO_KERNELS_TILE_MATMUL_BLOCK_H
#define RUBATO_KERNELS_TILE_MATMUL_BLOCK_H

#include "kernels/tile_matmul.h"

#include <string.h>

#ifndef TILE_LANES
#define TILE_LANES 4
#define TILE_ROWS  4
#endif

#define TILE_INLINE static inline __attribute__((always_inline))

typedef float tile_vector __attribute__((vector_size(TILE_LANES * sizeof(float))));

/* A, or what is left of it: value (i, k) is at a[i * row_step + k * inner_step]. */
struct tile_left {
    const float *a;
    int64_t row_step, inner_step;
};

TILE_INLINE tile_vector tile_load(const float *from) {
    tile_vector vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

/* `rows` x (`vectors` * TILE_LANES) of C. The two numbers are constants where this is inlined, so
 * that the sums live in registers. */
TILE_INLINE void tile_block(const struct matmul *shape, struct tile_left left, const float *b,
                            float *c, const int rows, const int vectors) {
    tile_vector sums[TILE_ROWS][2] = {0};
    for (int64_t k = 0; k < shape->inner; k++) {
        tile_vector right[2] = {tile_load(b + k * shape->stride_b)};
        if (vectors == 2) right[1] = tile_load(b + k * shape->stride_b + TILE_LANES);
        const float *column = left.a + k * left.inner_step;
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            float value = column[i * left.row_step];
            sums[i][0] += value * right[0];
            if (vectors == 2) sums[i][1] += value * right[1];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vectors; v++) {
            float *to = c + i * shape->stride_c + (int64_t)v * TILE_LANES;
            tile_vector sum = shape->accumulate ? sums[i][v] + tile_load(to) : sums[i][v];
            memcpy(to, &sum, sizeof sum);
        }
    }
}

/* The last columns, fewer than a vector has lanes: by way of a whole block beside C. */
TILE_INLINE void tile_columns_left(const struct matmul *shape, struct tile_left left,
                                   const float *b, float *c, int64_t width, const int rows) {
    float whole[TILE_ROWS * TILE_LANES] = {0};
    struct matmul beside = *shape;
    beside.stride_c = TILE_LANES;
    beside.accumulate = false;
    tile_block(&beside, left, b, whole, rows, 1);
    for (int64_t i = 0; i < rows; i++) {
        float *row = c + i * shape->stride_c;
        for (int64_t j = 0; j < width; j++)
            row[j] = whole[i * TILE_LANES + j] + (shape->accumulate ? row[j] : 0.0F);
    }
}

/* All columns of `rows` rows. */
TILE_INLINE void tile_rows(const struct matmul *shape, struct tile_left left, const float *b,
                           float *c, const int rows) {
    int64_t j = 0;
    for (; shape->cols - j >= INT64_C(2) * TILE_LANES; j += INT64_C(2) * TILE_LANES)
        tile_block(shape, left, b + j, c + j, rows, 2);
    if (shape->cols - j >= TILE_LANES) {
        tile_block(shape, left, b + j, c + j, rows, 1);
        j += TILE_LANES;
    }
    if (j < shape->cols) tile_columns_left(shape, left, b + j, c + j, shape->cols - j, rows);
}

TILE_INLINE void tile_all(const struct matmul *shape, struct tile_left left, const float *b,
                          float *c) {
    int64_t i = 0;
    for (; shape->rows - i >= TILE_ROWS; i += TILE_ROWS, left.a += TILE_ROWS * left.row_step)
        tile_rows(shape, left, b, c + i * shape->stride_c, TILE_ROWS);
    for (; TILE_ROWS > 4 && shape->rows - i >= 4; i += 4, left.a += 4 * left.row_step)
        tile_rows(shape, left, b, c + i * shape->stride_c, 4);
    for (; i < shape->rows; i++, left.a += left.row_step)
        tile_rows(shape, left, b, c + i * shape->stride_c, 1);
}

/* The two layouts of A apart, so that one of its steps is the constant 1. */
TILE_INLINE void tile_matmul_body(const struct matmul *shape, const float *a, const float *b,
                                  float *c) {
    if (shape->transpose_a)
        tile_all(shape, (struct tile_left){a, 1, shape->stride_a}, b, c);
    else
        tile_all(shape, (struct tile_left){a, shape->stride_a, 1}, b, c);
}

#endif
