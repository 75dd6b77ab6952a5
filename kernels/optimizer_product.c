/* optimizer_product.c - products in a fixed order, and five steps of Newton-Schulz.
 *
 * C is made in tiles of TILE_ROWS x TILE_COLUMNS whose sums stay in registers while a slab of the
 * inner dimension goes by; B's part of slab and tile is packed first, so that it is read from the
 * first cache for all rows. Between slabs the sums rest in C, exactly, so the order of a sum is the
 * plain one. X X' and A A are symmetric to the bit (fmaf(a, b, c) is fmaf(b, a, c)), so half of
 * each is copied.
 */
#include "kernels/optimizer_product.h"

#include "kernels/dispatch.h"
#include "kernels/optimizer.h"
#include "kernels/optimizer_moment.h"

#include <math.h>

enum { TILE_ROWS = 8, TILE_COLUMNS = 16, SLAB = 256 };

/* sums [rows][TILE_COLUMNS] += A's rows times the packed slab of B; a's rows are `stride` apart. */
static inline __attribute__((always_inline)) void
multiply_tile(const int rows, int64_t depth, const float *restrict a, int64_t stride,
              const float *restrict packed, float (*restrict sums)[TILE_COLUMNS]) {
    float held[TILE_ROWS][TILE_COLUMNS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int j = 0; j < TILE_COLUMNS; j++)
            held[i][j] = sums[i][j];
    }
    for (int64_t k = 0; k < depth; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float value = a[i * stride + k];
#pragma GCC unroll 16
            for (int j = 0; j < TILE_COLUMNS; j++)
                held[i][j] = fmaf(value, packed[k * TILE_COLUMNS + j], held[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
        for (int j = 0; j < TILE_COLUMNS; j++)
            sums[i][j] = held[i][j];
    }
}

KERNEL_CLONES static void multiply(int64_t rows, int64_t depth, const float *restrict a,
                                   int64_t stride, const float *restrict packed,
                                   float (*restrict sums)[TILE_COLUMNS]) {
    if (rows == TILE_ROWS) {
        multiply_tile(TILE_ROWS, depth, a, stride, packed, sums);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        multiply_tile(1, depth, a + i * stride, stride, packed, sums + i);
}

/* packed [depth][TILE_COLUMNS]: `width` columns of B, and zeros behind. */
static void pack(const float *b, int64_t stride, int64_t depth, int64_t width, float *packed) {
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t j = 0; j < TILE_COLUMNS; j++)
            packed[k * TILE_COLUMNS + j] = j < width ? b[k * stride + j] : 0.0F;
    }
}

static float first_sum(const struct optimizer_product *product, int64_t at) {
    return product->start ? product->keep * product->start[at] : 0.0F;
}

/* The tile of C at (row, column) with a slab of the inner dimension from k on. */
static void add_slab(const struct optimizer_product *product, int64_t row, int64_t column,
                     int64_t k, int64_t depth, const float *a, const float *packed, float *c) {
    float sums[TILE_ROWS][TILE_COLUMNS] = {{0}};
    const int64_t cols = product->cols;
    const int64_t height = product->rows - row < TILE_ROWS ? product->rows - row : TILE_ROWS;
    const int64_t width = cols - column < TILE_COLUMNS ? cols - column : TILE_COLUMNS;
    for (int64_t i = 0; i < height; i++) {
        int64_t at = (row + i) * cols + column;
        for (int64_t j = 0; j < width; j++)
            sums[i][j] = k == 0 ? first_sum(product, at + j) : c[at + j];
    }
    multiply(height, depth, a + row * product->inner + k, product->inner, packed, sums);
    for (int64_t i = 0; i < height; i++)
        memcpy(c + (row + i) * cols + column, sums[i], (size_t)width * sizeof(float));
}

/* The tiles on and above the diagonal are there. */
static void mirror(float *c, int64_t side) {
    for (int64_t i = 1; i < side; i++) {
        for (int64_t j = 0; j < i; j++)
            c[i * side + j] = c[j * side + i];
    }
}

void optimizer_product(const struct optimizer_product *product, const float *a, const float *b,
                       float *c) {
    float packed[SLAB * TILE_COLUMNS];
    const int64_t cols = product->cols;
    for (int64_t k = 0; k < product->inner; k += SLAB) {
        int64_t depth = product->inner - k < SLAB ? product->inner - k : SLAB;
        for (int64_t column = 0; column < cols; column += TILE_COLUMNS) {
            int64_t width = cols - column < TILE_COLUMNS ? cols - column : TILE_COLUMNS;
            int64_t last = product->symmetric ? column + width : product->rows;
            pack(b + k * cols + column, cols, depth, width, packed);
            for (int64_t row = 0; row < last; row += TILE_ROWS)
                add_slab(product, row, column, k, depth, a, packed, c);
        }
    }
    if (product->symmetric) mirror(c, product->rows);
}

/* to [cols, rows] = from [rows, cols] transposed, by squares that fit in the first cache. */
static void transpose(const float *from, int64_t rows, int64_t cols, float *to) {
    enum { SQUARE = 32 };
    for (int64_t i0 = 0; i0 < rows; i0 += SQUARE) {
        for (int64_t j0 = 0; j0 < cols; j0 += SQUARE) {
            int64_t i1 = rows - i0 < SQUARE ? rows : i0 + SQUARE;
            int64_t j1 = cols - j0 < SQUARE ? cols : j0 + SQUARE;
            for (int64_t j = j0; j < j1; j++) {
                for (int64_t i = i0; i < i1; i++)
                    to[j * rows + i] = from[i * cols + j];
            }
        }
    }
}

static void scale(float *values, float factor, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] *= factor;
}

/* power = -4.7750 A + 2.0315 power */
static void combine(const float *a, float *power, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        power[i] = MUON_B * a[i] + MUON_C * power[i];
}

float *optimizer_product_orthogonal(const struct optimizer_piece *piece, float *scratch) {
    const int64_t count = piece->rows * piece->cols;
    const bool tall = piece->rows > piece->cols;
    const int64_t n = tall ? piece->cols : piece->rows, m = tall ? piece->rows : piece->cols;
    const size_t values = optimizer_round64(4 * (size_t)count) / sizeof(float);
    float *x = scratch, *other = scratch + values;
    float *a = other + values;
    float *power = a + optimizer_round64(4 * (size_t)(n * n)) / sizeof(float);
    scale(x, optimizer_product_unit(optimizer_sum_of_squares(x, count)), count);
    if (tall) {
        transpose(x, m, n, other);
        x = other;
        other = scratch;
    }
    const struct optimizer_product gram = {n, n, m, NULL, 0.0F, true};
    const struct optimizer_product square = {n, n, n, NULL, 0.0F, true};
    for (int step = 0; step < MUON_STEPS; step++) {
        transpose(x, n, m, other);
        optimizer_product(&gram, x, other, a);
        optimizer_product(&square, a, a, power);
        combine(a, power, n * n);
        const struct optimizer_product next = {n, m, n, x, MUON_A, false};
        optimizer_product(&next, power, x, other);
        float *newer = other;
        other = x;
        x = newer;
    }
    if (!tall) return x;
    transpose(x, n, m, other);
    return other;
}
