/* tile_matmul.h - matrix products that fit in the first cache, on the calling thread.
 *
 * For the tiles of attention, where a call to the matrix library costs as much as the product. A
 * block of rows x vectors of C is summed in registers over the whole inner dimension: values of A
 * are spread over a vector's lanes, rows of B are read as vectors. One file a level of vector
 * instructions (tile_matmul_plain.c, _avx2.c, _avx512.c) includes tile_matmul_block.h with its
 * sizes; the chip's best level is taken at each call. matmul_ref() is the oracle.
 * Arrays are f32 on the host and the caller's, C overlaps neither A nor B. The bits are the same
 * for a level. Any thread may call.
 */
#ifndef RUBATO_KERNELS_TILE_MATMUL_H
#define RUBATO_KERNELS_TILE_MATMUL_H

#include "kernels/matmul.h"

#define TILE_COLUMNS 16 /* rows of B must be readable up to a multiple of it */

/* As matmul(), with these limits: B is not transposed, and each of its rows can be read, with any
 * content, up to `cols` rounded up to a multiple of TILE_COLUMNS. */
void tile_matmul(const struct matmul *shape, const float *a, const float *b, float *c);

typedef void tile_matmul_fn(const struct matmul *shape, const float *a, const float *b, float *c);

enum tile_matmul_level { TILE_PLAIN, TILE_AVX2, TILE_AVX512, TILE_LEVEL_COUNT };

/* The level's function; NULL where the chip or the build does not have it. */
tile_matmul_fn *tile_matmul_level(enum tile_matmul_level level);

/* Internal: the levels. */
tile_matmul_fn tile_matmul_plain, tile_matmul_avx2, tile_matmul_avx512;

#endif
