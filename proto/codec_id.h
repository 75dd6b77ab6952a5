/* codec_id.h - the numbers by which frames name their payload's encoding. Append only. */
#ifndef RUBATO_PROTO_CODEC_ID_H
#define RUBATO_PROTO_CODEC_ID_H

/* Layouts: compression/scheme.h, compression/lossless.h. */
enum codec_id {
    CODEC_F32 = 0,  /* "none": little-endian f32 */
    CODEC_BF16 = 1, /* bfloat16, round to nearest even */
    CODEC_INT8 = 2, /* blocks of 128 values: f16 scale, then 128 x int8 */
    CODEC_FP16 = 3,
    CODEC_FP8 = 4,
    CODEC_INT4 = 5,
    CODEC_ONEBIT = 6,
    CODEC_TOPK = 7,
    CODEC_TOPK_GLOBAL = 8,
    CODEC_RANDK = 9,
    CODEC_POWERSGD = 10,
    CODEC_QSGD = 11,
    CODEC_TERNGRAD = 12,
    CODEC_NATURAL = 13,
    CODEC_SIGNSGD = 14,
    CODEC_FILL = 15, /* one f32 that all values take: how a block that is not finite travels */
    CODEC_ZSTD = 16, /* another codec's payload, in byte planes, without loss */
    /* Pulls: steps of a replica; layouts: compression/delta.h. */
    CODEC_DELTA_INT8 = 17,
    CODEC_DELTA_INT4 = 18,
    CODEC_POWERSGD_SHARED = 19 /* a push's, and a mean's */
};

#endif
