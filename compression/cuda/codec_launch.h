/* codec_launch.h - the kernels of codecs: what codec_cuda.c launches. Internal to compression/cuda.
 *
 * An encoding is a few launches on one stream: which rows have values (where a codec asks), all
 * tiles in one pass over memory (in six for topk over whole blocks, four for powersgd), the head,
 * the sums and the result, and the checksum of a payload that stays. A tile is 512 values, the
 * host's SCHEME_TILE, worked on by the 16 lanes in which the host's loops add up
 * (compression/codec_loops_sums.h), so that floats are added in the host's order.
 * Each call queues its work and returns 0, or the cudaError_t of a launch that failed. All arrays
 * are on the stream's device; `result` is pinned. Any thread may call.
 */
#ifndef RUBATO_COMPRESSION_CUDA_CODEC_LAUNCH_H
#define RUBATO_COMPRESSION_CUDA_CODEC_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */
struct codec_cuda_result;

enum codec_launch_flags {
    CODEC_LAUNCH_SR = 1,  /* int4: stochastic rounding */
    CODEC_LAUNCH_HAD = 2, /* int4: rotated, as the payload's flag is */
    CODEC_LAUNCH_L2 = 4,  /* int4: the norm for a scale (qsgd) */
    CODEC_LAUNCH_E5M2 = 8,
    CODEC_LAUNCH_FEEDBACK = 16,
    CODEC_LAUNCH_ROWS = 32,      /* rows that are all zero are looked for */
    CODEC_LAUNCH_SHOWS = 64,     /* ... and told in the payload's head */
    CODEC_LAUNCH_SPECIALS = 128, /* the codec carries what is not finite */
    CODEC_LAUNCH_ON_ROWS = 256   /* powersgd, shared: the factor that is, is of rows */
};

/* What a launch is of; copied with it. */
struct codec_launch {
    int64_t count, rows, cols;
    int64_t head;           /* bytes ahead of the first tile where no row is all zero */
    int64_t body;           /* bytes of all tiles, but for gaps; decoding: of the payload */
    int64_t square_parts;   /* sums of squares that the tiles make */
    uint32_t fold_parts;    /* tiles whose other sums are added up first */
    uint32_t codec;         /* enum codec_id */
    uint32_t flags;         /* enum codec_launch_flags */
    uint32_t residual_type; /* enum codec_residual */
    uint32_t number[4];     /* the heads of topk (k), randk (randk_places.h), powersgd (rows,
                             * rank) and its shared form (values that are sent; then rank) */
    uint32_t noise_key[2], noise_counter[3]; /* struct loop_noise */
    float scale, beta;
};

/* rows: [CODEC_ROWS_HEAD + ceil(rows / 32)]: 1 if a value is not finite; how many rows have a
 * value; bytes of the gaps of topk over whole blocks; a bit a row. sums: square_parts, then a
 * gradient's and a residual's for each tile. */
enum { CODEC_ROWS_SPECIAL, CODEC_ROWS_FOUND, CODEC_ROWS_GAPS, CODEC_ROWS_HEAD };

/* scratch, for topk over whole blocks: [CODEC_GLOBAL_HEAD + CODEC_GLOBAL_TILE * tiles]. */
enum { CODEC_GLOBAL_HEAD = 2 + 3 * 2048, CODEC_GLOBAL_TILE = 5 };

struct codec_arrays {
    const float *values; /* [count] */
    uint8_t *residual;   /* codec_residual_bytes(); NULL without feedback */
    uint8_t *wire;
    uint32_t *rows; /* zeroed */
    double *sums;
    uint32_t *scratch;
    /* powersgd: [count] what is encoded; its factors [rank, rows] and [rank, cols], of which the
     * second stays, and what that becomes where it is zeros. Of the shared form one has come, and
     * there is no noise. */
    float *a, *x, *y;
    const float *noise;
    struct codec_cuda_result *result;
};

int codec_launch_rows(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream);
int codec_launch_finish(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        struct CUstream_st *stream);

/* The checksum of the payload, of at most so many bytes, behind finish; wire is aligned to 8.
 * sums [most_bytes / 128 + 1] is scratch. */
int codec_launch_checksum(int64_t most_bytes, const struct codec_arrays *arrays, uint64_t *sums,
                          struct CUstream_st *stream);

/* f32, bf16 and fp16; int8 and fp8; int4 and qsgd; onebit and signsgd; topk, by chunks and over
 * whole blocks; randk; powersgd, and its shared form; terngrad and natural. */
int codec_launch_cast(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream);
int codec_launch_scaled(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        struct CUstream_st *stream);
int codec_launch_int4(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream);
int codec_launch_signs(const struct codec_launch *launch, const struct codec_arrays *arrays,
                       struct CUstream_st *stream);
int codec_launch_topk(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream);
int codec_launch_topk_global(const struct codec_launch *launch, const struct codec_arrays *arrays,
                             struct CUstream_st *stream);
int codec_launch_randk(const struct codec_launch *launch, const struct codec_arrays *arrays,
                       struct CUstream_st *stream);
int codec_launch_powersgd(const struct codec_launch *launch, const struct codec_arrays *arrays,
                          struct CUstream_st *stream);
int codec_launch_shared(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        struct CUstream_st *stream);
int codec_launch_reference(const struct codec_launch *launch, const struct codec_arrays *arrays,
                           struct CUstream_st *stream);

/* out [count] = a payload that was found sound, or += it; of the launch, count, body and codec. */
int codec_launch_cast_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                             bool add, struct CUstream_st *stream);
int codec_launch_scaled_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                               bool add, struct CUstream_st *stream);
int codec_launch_int4_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                             bool add, struct CUstream_st *stream);
int codec_launch_signs_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                              bool add, struct CUstream_st *stream);
int codec_launch_topk_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                             bool add, struct CUstream_st *stream);
int codec_launch_topk_global_decode(const struct codec_launch *launch, const uint8_t *wire,
                                    float *out, bool add, struct CUstream_st *stream);
int codec_launch_randk_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                              bool add, struct CUstream_st *stream);
int codec_launch_powersgd_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                                 bool add, struct CUstream_st *stream);
int codec_launch_shared_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                               bool add, struct CUstream_st *stream);
int codec_launch_reference_decode(const struct codec_launch *launch, const uint8_t *wire,
                                  float *out, bool add, struct CUstream_st *stream);

/* Likewise CODEC_FILL. */
int codec_launch_fill(const uint8_t *wire, float *out, bool add, int64_t count,
                      struct CUstream_st *stream);

/* A replica's steps (compression/delta.h) of step_bytes each, one after the other. */
struct codec_steps {
    int64_t count, step_bytes;
    uint32_t steps;
    bool four_bits;
};
int codec_launch_delta(const struct codec_steps *steps, const uint8_t *wire, float *replica,
                       struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
