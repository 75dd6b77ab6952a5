/* codec_id.h - the numbers by which frames name their payload's encoding. Append only. */
#ifndef RUBATO_PROTO_CODEC_ID_H
#define RUBATO_PROTO_CODEC_ID_H

enum codec_id {
    CODEC_F32 = 0,  /* "none": little-endian f32 */
    CODEC_BF16 = 1, /* bfloat16, round to nearest even */
    CODEC_INT8 = 2  /* blocks of 128 values: f16 scale, then 128 x int8 */
};

#endif
