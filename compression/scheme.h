/* scheme.h - how one codec turns a block's values into bytes; what a new codec implements.
 *
 * A scheme works on tiles of a block, one after the other: encoder.c prepares a tile (scale, error
 * feedback) in the first-level cache, the scheme appends the tile's bytes, and the tile is decoded
 * and its residual settled while it is still there: one pass over memory. A scheme that must see
 * the whole block at once says tile = 0.
 * Invariants: decoding depends on the payload's bytes and the count alone. The same input gives the
 * same bytes on every chip. Nothing is allocated. measure() has seen every byte that decode() will
 * trust: what it let pass cannot make decode() leave its buffers. An all-zero row of the gradient
 * decodes to zeros.
 * To add one: a file scheme_NAME.c, a row in scheme.c, a number in proto/codec_id.h, its name for
 * users in proto/codec_spec.c, its kernels and a row in compression/cuda, a row in the case list of
 * tests/codec_rig.c.
 *
 * Payloads, little-endian. "scale" is the upper half of an f32, rounded up. [n] counts values of
 * the tile or block, a last one may be short.
 *
 *   none      4n      f32, all its bits
 *   bf16      2n      the upper half of the f32, rounded to nearest, ties to even; a NaN stays a
 *                     NaN, quiet, and a value above the largest bf16 becomes an infinity
 *   int8      for each 128 values:
 *             2 + n   scale s: f16, max|a| / 127 rounded up to an f16 (at least 2^-24, the
 *                     smallest, unless all are zero); codes q = a / s to nearest, ties to even. A
 *                     value decodes to q s, which f32 holds exactly. If a value is not finite, or
 *                     max|a| / 127 > 65504, s is infinity and all codes are 1
 *   fp16      2n      IEEE binary16, nearest even; above 65504 it becomes infinity
 *   fp8       1       0: e4m3, 1: e5m2; then for each 128 values:
 *             2 + n   scale = max|a| / 448 or 57344; sign, exponent, fraction of a / scale
 *   int4      rows    row mask (below); 1: flags, 2 = rotated; then for each 128 values:
 *             2 + min(n, 64)   scale = max|a| / 7; byte i: value i low, value i + 64 high nibble,
 *                     two's complement. Rotated: each 32 values were multiplied by Hadamard's
 *                     matrix / sqrt(32), and are again after decoding (zeros fill the last 128)
 *   qsgd      as int4, with scale = |block|_2 / 7, always stochastic
 *   onebit    rows    row mask; then for each 512 values:
 *             2 + ceil(n / 8)  mean|a| over rows that are not masked, as bf16; sign bits
 *   signsgd   rows    row mask; ceil(n / 8) sign bits: values decode to +1 or -1
 *   topk      4       k of 4096 values, u32; then for each 4096 values, k' = ceil(k n / 4096):
 *             ceil(12 k' / 8) rising indices of 12 bits, lowest bits first; 2k' values, bf16
 *   topk, global
 *             4       k, u32; k gaps between rising indices, LEB128, the first from -1, less 1;
 *             2k      values, bf16
 *   randk     16      period u32, log2 of the run u32, key u32, step u32; then, as bf16, the
 *                     values of the runs that scheme_randk.c picks
 *   powersgd  8       rows u32, rank u32; [rank, rows] and [rank, cols], the factors, bf16
 *   powersgd, shared
 *             4       values k, u32; k values of one factor, bf16
 *   terngrad  for each 512 values: 2 + ceil(n / 4): scale = max|a| clipped at 2.5 sigma;
 *                     2 bits a value: 0, 1 = +, 3 = -
 *   natural   n       sign bit, and exponent less 18 clamped to 0 .. 127; 0 in 7 bits is zero
 *   fill      4       f32
 *   zstd      8 + ..  see lossless.h
 *   row mask  1       0, or 1 and: 4 cols u32; ceil(rows / 8) bits, bit r: row r is all zero,
 *                     rows = ceil(count / cols)
 */
#ifndef RUBATO_COMPRESSION_SCHEME_H
#define RUBATO_COMPRESSION_SCHEME_H

#include "base/status.h"
#include "compression/codec_loops.h"
#include "proto/codec_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCHEME_TILE_MAX = 4096 };

/* The usual tile. So few lines of memory can all be on their way while the tile before is worked
 * on; of a longer tile, most would be waited for. */
enum { SCHEME_TILE = 512 };

/* An encoding under way. */
struct scheme_run {
    const struct codec_spec *spec;
    const struct codec_loops *loops;
    size_t count, rows, cols;
    float density;            /* of this step: the schedule may be above spec->density */
    const uint8_t *zero_rows; /* bit r: row r of the gradient is all zero; NULL: none is */
    uint64_t seed;            /* the job's */
    uint32_t lane;            /* the worker: gives each its own rounding */
    uint64_t step, block;
    bool averages; /* what is encoded is a mean of decoded payloads: a server's */
    float *state;  /* [state_values] that live as long as the block; zeroed at first */
    void *scratch; /* scratch_bytes */
};

/* A payload being decoded. */
struct scheme_view {
    const struct codec_loops *loops;
    const uint8_t *wire;
    size_t bytes, count;
    size_t head;              /* bytes before the first tile, set by open() */
    const uint8_t *zero_rows; /* of a row mask, or NULL */
    size_t cols;
    uint32_t number[4]; /* what the scheme's head says */
    bool trusted;       /* measure() has let all of it pass, and only finds lengths again */
};

/* What pick() has seen of a block. */
struct scheme_seen {
    double squares;          /* the sum of the squares of what the payload decodes to */
    double gradient_squares; /* likewise of scale * values, as far as can be told from that */
    uint32_t max_bits;       /* the largest |scale * value| bits */
};

struct scheme {
    uint8_t id;
    bool carries_specials; /* NaN and infinity survive; else encoder.c sends CODEC_FILL instead */
    bool warms_up;         /* the schedule sends it dense at first */
    uint8_t planes;        /* bytes of a value, for lossless.c: 2, 4, or 1 for what is no number */
    size_t tile;           /* values, a divisor of SCHEME_TILE_MAX; 0: the whole block */

    /* Most bytes of a payload. NULL: encoder.c makes it, and no user asks for it (fill). */
    size_t (*bound)(const struct scheme_run *run);
    /* What else encode() wants: state floats a block, scratch bytes. NULL: nothing. */
    size_t (*state_values)(const struct scheme_run *run);
    size_t (*scratch_bytes)(const struct scheme_run *run);
    /* Writes what comes before the first tile, returns its bytes. NULL: nothing does. */
    size_t (*start)(const struct scheme_run *run, uint8_t *wire);
    /* a [n] f32 at `offset` of the block -> wire; returns the bytes. *squares comes as 0 and goes
     * as the sum of the squares of what they decode to, or as -1 if that would take decoding
     * them. */
    size_t (*encode)(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                     uint8_t *wire, double *squares);
    /* Schemes that know what they send before they look at it; without feedback. The whole payload
     * of scale * values [count], of which nothing else is read. *seen comes as zeros. NULL: start()
     * and encode() make it. */
    size_t (*pick)(const struct scheme_run *run, const float *values, float scale, uint8_t *wire,
                   struct scheme_seen *seen);
    /* Schemes whose payload alone does not say what the block is. out [rows, cols] = what this
     * run's tile, the whole block, stands for; and values [rows, cols], to which the mean of all
     * such payloads decodes, become what that stands for. NULL: decoding says it. */
    void (*restore)(const struct scheme_run *run, const uint8_t *wire, float *out);
    void (*expand)(const struct scheme_run *run, float *values);
    /* Of those, for who encodes elsewhere: does to the state what encode() would, and writes the
     * factor that is not sent: [rank, rows], then it returns true, or [rank, cols]. */
    bool (*share)(const struct scheme_run *run, float *factor);
    /* Reads the head; false if it makes no sense. NULL: there is none. */
    bool (*open)(struct scheme_view *view);
    /* The bytes of the tile that starts at `at`, of which `left` are there; anything above `left`
     * if they are malformed. */
    size_t (*measure)(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                      size_t left);
    /* out [n] = or += the tile. */
    void (*decode)(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                   float *out, bool add);
    /* a [n] -= what the tile decodes to, 0 where that is not finite; for schemes that send few
     * values, so that feedback need not decode them all. NULL: it does. */
    void (*subtract)(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                     float *a);
    /* Bytes of a valid payload before its values, where planes > 1. NULL: none. */
    size_t (*prefix)(const uint8_t *wire, size_t bytes);
};

const struct scheme *scheme_by_id(uint8_t id);

extern const struct scheme scheme_none, scheme_bf16, scheme_fp16, scheme_int8, scheme_fp8;
extern const struct scheme scheme_int4, scheme_qsgd, scheme_onebit, scheme_signsgd;
extern const struct scheme scheme_topk, scheme_topk_global, scheme_randk, scheme_powersgd;
extern const struct scheme scheme_powersgd_shared;
extern const struct scheme scheme_terngrad, scheme_natural, scheme_fill;

/* The row mask: most bytes, writing (returns bytes), reading (false: malformed; sets head). */
size_t scheme_mask_bound(const struct scheme_run *run);
size_t scheme_mask_start(const struct scheme_run *run, uint8_t *wire);
bool scheme_mask_open(struct scheme_view *view);

static inline bool scheme_row_is_zero(const uint8_t *zero_rows, size_t row) {
    return (zero_rows[row / 8] >> (row % 8) & 1) != 0;
}

/* values [n] at `offset`: zeros those of masked rows. Returns how many they are. */
size_t scheme_mask_apply(const uint8_t *zero_rows, size_t cols, size_t offset, float *values,
                         size_t n);

/* decode(), with masked rows left zero. */
void scheme_decode_tile(const struct scheme *scheme, const struct scheme_view *view, size_t offset,
                        size_t n, const uint8_t *at, float *out, bool add);

/* The noise of the value at `offset`, a multiple of 64: Philox with key {seed's low word,
 * RANDOM_CODEC} and counter {call, step, block, lane ^ seed's high word}; each call serves 8
 * values. Value i of a 64 has 16 bits of word i % 2 + 2 (i / 32) of call i % 16 / 2, the upper
 * ones if i / 16 is odd. */
struct loop_noise scheme_noise(const struct scheme_run *run, size_t offset);

/* The 16 bits of each of at most 64 values, from `offset` on. For loops that are not vectors. */
void scheme_noise_halves(const struct scheme_run *run, size_t offset, uint16_t halves[64]);

/* Little-endian words. */
static inline void scheme_put_u32(uint8_t *wire, uint32_t value) {
    memcpy(wire, &value, sizeof value);
}

static inline uint32_t scheme_get_u32(const uint8_t *wire) {
    uint32_t value;
    memcpy(&value, wire, sizeof value);
    return value;
}

static inline uint16_t scheme_get_u16(const uint8_t *wire) {
    uint16_t value;
    memcpy(&value, wire, sizeof value);
    return value;
}

#endif
