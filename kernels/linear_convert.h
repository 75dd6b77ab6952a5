/* linear_convert.h - f32 to bfloat16: rows of activations, and weights into oneDNN's layouts.
 *
 * Rounding is to nearest even; a NaN stays one. Threads: OpenMP's; the bits do not depend on their
 * number. Arrays are the caller's, none overlapping another.
 */
#ifndef RUBATO_KERNELS_LINEAR_CONVERT_H
#define RUBATO_KERNELS_LINEAR_CONVERT_H

#include <stdint.h>

/* from [rows, cols] f32, `stride` values a row -> to [rows, cols], dense. */
void linear_to_bf16(const float *from, int64_t stride, uint16_t *to, int64_t rows, int64_t cols);

/* The same, rounded to bfloat16's values but still f32. */
void linear_round_bf16(const float *from, int64_t stride, float *to, int64_t rows, int64_t cols);

enum { PACK_INNER = 32, PACK_COLS = 64 };

/* oneDNN's BA16a64b2a: a matrix [inner, cols] of bfloat16 cut in tiles of 32 x 64, the ones below
 * each other next to each other in memory, filled up with zeros at the edges. In a tile, values
 * (2 i, j) and (2 i + 1, j) are neighbours, and such pairs lie j first: what AMX and VDPBF16PS
 * multiply. */
struct packed_matrix {
    uint16_t *values;    /* NULL: not wanted */
    int64_t inner, cols; /* of the matrix, without the filling */
    int64_t inner_step;  /* values from a tile to the one below it */
    int64_t cols_step;   /* values from a tile to the one right of it */
};

/* from [rows, cols] f32, dense -> `down`, the matrix as it is ([inner = rows, cols = cols]), and
 * `across`, its transpose ([inner = cols, cols = rows]); each value is read once for both. Shapes
 * are taken from `down`, also where its values are not wanted. */
void linear_pack(const float *from, const struct packed_matrix *down,
                 const struct packed_matrix *across);

#endif
