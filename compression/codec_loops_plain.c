/* The loops at the width that every chip of the build's kind has, and the choice of a level. */
#include "compression/codec_loops_body.h"

const struct codec_loops codec_loops_plain = CODEC_LOOPS("plain");

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

const struct codec_loops *codec_loops_level(enum codec_level level) {
    if (level == CODEC_PLAIN) return &codec_loops_plain;
#ifdef RUBATO_CODEC_X86
    if (level == CODEC_AVX2 && __builtin_cpu_supports("avx2")) return &codec_loops_avx2;
    if (level == CODEC_AVX512 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return &codec_loops_avx512;
#endif
    return NULL;
}

const struct codec_loops *codec_loops_best(void) {
    const struct codec_loops *loops = codec_loops_level(CODEC_AVX512);
    if (loops == NULL) loops = codec_loops_level(CODEC_AVX2);
    return loops != NULL ? loops : &codec_loops_plain;
}
