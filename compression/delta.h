/* delta.h - weights on their way down as differences to a replica that both sides hold.
 *
 * A block's replica r is the same, bit for bit, on its shard and on each worker that follows it; a
 * worker computes with r. A step moves it towards the weights w: r' = bf16(r + D(Q(w - r))), Q with
 * 8 or 4 bits a value and a scale for each 128. What Q or the rounding leaves over is in the next
 * step's difference, so that nothing is lost for good and Q may be biased (implicit error feedback:
 * Wang et al., "SDP4Bit", NeurIPS 2024). The error of a value after a step is at most
 * scale / 2 + 2^-8 |w|, with scale <= max|w - r| of its 128 values, times 1.008 / 127 or / 7.
 * Replicas are exact in bf16, so that a whole one, for who comes late, travels as CODEC_BF16 in 2
 * bytes a value; delta_steps_max() says how many steps are cheaper than that.
 * Invariants: a replica depends on the payloads alone, not on the chip. Nothing is allocated.
 *
 * Payload of CODEC_DELTA_INT8 and CODEC_DELTA_INT4, little-endian; the frame's block_version is
 * that of the replica after the last step:
 *
 *   offset size
 *        0    8  version of the replica before the first step
 *        8    4  its check
 *       12    4  check of the replica after the last step
 *       16    4  steps, 0 or more
 *       20       the steps, one after the other, each for 128 values and the rest:
 *                2      scale, the upper half of an f32: max|w - r| / 127 or / 7, rounded up
 *                n      int8: codes, or
 *                min(n, 64)  int4: byte i has value i in its low, value i + 64 in its high half;
 *                       two's complement
 */
#ifndef RUBATO_COMPRESSION_DELTA_H
#define RUBATO_COMPRESSION_DELTA_H

#include "base/status.h"
#include "proto/codec_id.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DELTA_HEAD      ((size_t)20)
#define DELTA_STEPS_TOP 3 /* of delta_steps_max() */
#define DELTA_NONE      0 /* check of no replica */

/* Which replica: two are the same if both numbers are. */
struct delta_place {
    uint64_t version;
    uint32_t check; /* delta_check(), or DELTA_NONE */
};

/* The codec of --pull `name`, CODEC_DELTA_INT8 or CODEC_DELTA_INT4; false: another word. */
bool delta_find(const char *name, uint8_t *codec);

/* The same for a frame's codec. */
bool delta_is(uint8_t codec);

/* Bytes of one step of `count` values; and the most steps whose payload is shorter than the whole
 * block as bf16: 0 for a few values, else 1 with 8 bits, up to 3 (from 110 values on) with 4. */
size_t delta_step_bytes(uint8_t codec, size_t count);
size_t delta_steps_max(uint8_t codec, size_t count);

/* One pass: step [delta_step_bytes] takes replica [count] towards weights [count]. False: a
 * difference is not finite; the step and the replica are to be thrown away (delta_rebase). */
bool delta_encode_step(uint8_t codec, const float *weights, float *replica, size_t count,
                       uint8_t *step) WARN_UNUSED;

/* replica [count] = weights [count], rounded to bf16. */
void delta_rebase(const float *weights, float *replica, size_t count);

/* 32 bits of XXH3 of the values' bytes; never DELTA_NONE. */
uint32_t delta_check(const float *replica, size_t count);

void delta_head_put(uint8_t *payload, const struct delta_place *from, uint32_t check,
                    uint32_t steps);

/* Moves replica [count] from *place, where it is, to that of `version`. CORRUPT: malformed. STALE:
 * the steps are another replica's. Both leave all unchanged. MISMATCH: the steps have led somewhere
 * else; the replica is of no use then and place->check is DELTA_NONE. */
enum status delta_apply(uint8_t codec, const uint8_t *payload, size_t bytes, uint64_t version,
                        float *replica, size_t count, struct delta_place *place) WARN_UNUSED;

#endif
