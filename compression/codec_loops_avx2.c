/* The loops for chips with AVX2; compiled with it switched on. */
#include "compression/codec_loops_body.h"

const struct codec_loops codec_loops_avx2 = CODEC_LOOPS("avx2");
