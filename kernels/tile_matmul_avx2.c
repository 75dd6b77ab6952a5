/* For chips with AVX2 and FMA; compiled with them switched on. */
#define TILE_LANES 8
#define TILE_ROWS  6
#include "kernels/tile_matmul_block.h"

void tile_matmul_avx2(const struct matmul *shape, const float *a, const float *b, float *c) {
    tile_matmul_body(shape, a, b, c);
}
