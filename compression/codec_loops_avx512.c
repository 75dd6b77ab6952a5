/* The loops for chips with AVX-512 F, BW and DQ; compiled with it switched on. */
#include "compression/codec_loops_body.h"

const struct codec_loops codec_loops_avx512 = CODEC_LOOPS("avx512");
