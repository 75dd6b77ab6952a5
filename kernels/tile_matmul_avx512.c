/* For chips with AVX-512 F; compiled with it switched on. */
#define TILE_LANES 16
#define TILE_ROWS  8
#include "kernels/tile_matmul_block.h"

void tile_matmul_avx512(const struct matmul *shape, const float *a, const float *b, float *c) {
    tile_matmul_body(shape, a, b, c);
}
