/* The level that every chip has, and the choice among them. */
#include "base/assert.h"
#include "kernels/tile_matmul_block.h"

void tile_matmul_plain(const struct matmul *shape, const float *a, const float *b, float *c) {
    tile_matmul_body(shape, a, b, c);
}

tile_matmul_fn *tile_matmul_level(enum tile_matmul_level level) {
    if (level == TILE_PLAIN) return tile_matmul_plain;
#ifdef RUBATO_TILE_X86
    if (level == TILE_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return tile_matmul_avx2;
    if (level == TILE_AVX512 && __builtin_cpu_supports("avx512f")) return tile_matmul_avx512;
#endif
    return NULL;
}

void tile_matmul(const struct matmul *shape, const float *a, const float *b, float *c) {
    ASSERT(!shape->transpose_b);
    tile_matmul_fn *best = NULL;
    for (int level = TILE_LEVEL_COUNT - 1; best == NULL; level--)
        best = tile_matmul_level((enum tile_matmul_level)level);
    best(shape, a, b, c);
}
