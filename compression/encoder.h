/* encoder.h - a worker's side of a codec: a stream of blocks, each with what error feedback holds
 * back, and the schedule that starts sparse codecs dense.
 *
 * A block's step is one pass over memory: a tile is scaled, gets its residual added, is encoded,
 * decoded and settled while it is in the first-level cache.
 * Feedback: a = scale * values + e, send c = C(a); vanilla: e = a - D(c), so that what was sent
 * plus e is the sum of the gradients. LoCo: e = 0.8 e + 0.2 (a - D(c)), e = 0 every 1024 steps.
 * Schedule of topk, powersgd and onebit: bf16 for `dense_steps`, then for topk a density of 1/4,
 * 1/16, 1/64, ... down to the target over `ramp_steps`.
 * Rows of the gradient that are all zero decode to zeros; their residual waits. A block with a
 * value that is not finite decodes to values that are not finite, for the server's vote, and what
 * is not finite is never kept.
 * randk without feedback reads the values that it sends and no others: one that is not finite is
 * noticed only in a step that sends it (of a value that stays so, within 1 / density steps), and
 * changes nothing in others.
 * Invariant: payload and state depend on (config, the block's past values and steps) alone, not on
 * the chip, the thread or other blocks.
 * Sources: Karimireddy et al., "Error feedback fixes signSGD", ICML 2019; Xie et al., "LoCo", 2024;
 * Lin et al., "Deep gradient compression", ICLR 2018 (schedule).
 */
#ifndef RUBATO_COMPRESSION_ENCODER_H
#define RUBATO_COMPRESSION_ENCODER_H

#include "base/status.h"
#include "proto/codec_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct codec_loops;
struct encoder;

/* rows x cols values that follow each other. A pack of vectors is one row. */
struct encoder_block {
    uint64_t id; /* the plan's: enters random numbers */
    size_t rows, cols;
};

struct encoder_config {
    struct codec_spec spec;
    const struct encoder_block *blocks; /* [block_count], copied */
    size_t block_count;
    uint64_t seed; /* the job's, the same on all workers */
    uint32_t lane; /* the worker's rank: each rounds by its own random numbers */
    uint64_t dense_steps, ramp_steps;
    bool averages; /* a server's: what is encoded are means of what payloads decode to */
    const struct codec_loops *loops; /* NULL: the chip's best; for tests */
};

struct encoder_result {
    uint8_t codec; /* enum codec_id of the payload */
    size_t bytes;
    double square_sum; /* of what the payload decodes to */
    /* Of scale * values. Of randk without feedback an estimate: that of the values that were sent,
     * as bf16, times the period; what is not finite among the others is not in it. */
    double gradient_square_sum;
    double residual_square_sum; /* of e after this step, over rows that were sent; 0 without ef */
    uint64_t xxh3;              /* of a payload that lies on a device (encoder_device.h) */
};

/* What a step of a block is, for who encodes it elsewhere (encoder_device.h). */
struct encoder_step {
    uint64_t id, seed;
    uint32_t lane;
    size_t rows, cols;
    uint8_t codec; /* enum codec_id: the spec's, or what its schedule starts with */
    float density;
    float beta;            /* of LoCo's average; 0 without */
    bool restarts;         /* what was held back is dropped first */
    size_t residual_bytes; /* 0 without feedback */
    size_t state_values;   /* of the spec's codec, also where its schedule starts with another:
                            * powersgd's factor, [rank, cols], or 1 + rank x the longer side of
                            * one that is shared; 0 for most */
};

/* The steps that dense_steps and ramp_steps are by default for a job of `steps`. */
uint64_t encoder_default_dense(uint64_t steps);
uint64_t encoder_default_ramp(uint64_t steps);

/* Share of values that is sent in `step`: 1 (dense) .. target. Any thread. */
float encoder_density(float target, uint64_t dense_steps, uint64_t ramp_steps, uint64_t step);

/* Ends the process if memory is short (base/memory.h). Closing NULL is harmless. */
struct encoder *encoder_open(const struct encoder_config *config);
void encoder_close(struct encoder *encoder);

/* Of its config; and what a step of a block is. Any thread. */
const struct codec_spec *encoder_spec(const struct encoder *encoder);
size_t encoder_block_count(const struct encoder *encoder);
void encoder_step_of(const struct encoder *encoder, size_t block, uint64_t step,
                     struct encoder_step *of);

/* Most bytes of the block's payload in any step; and of the scratch, aligned to 64, that a call
 * needs. Any thread. */
size_t encoder_bound(const struct encoder *encoder, size_t block);
size_t encoder_scratch_bytes(const struct encoder *encoder);

/* Most bytes of its payload after the schedule's steps, before packing. Any thread. */
size_t encoder_usual_bytes(const struct encoder *encoder, size_t block);

/* values [rows * cols] f32 host -> wire [encoder_bound]. `block` indexes config.blocks. Different
 * blocks may be encoded by different threads at once, each with its own scratch. */
void encoder_encode(struct encoder *encoder, size_t block, uint64_t step, const float *values,
                    float scale, uint8_t *wire, void *scratch, struct encoder_result *result);

/* What encoder_encode() does last where the spec has +zstd, for who encoded elsewhere: wire
 * [encoder_bound] host holds the payload that `result` tells of, and then the packed one, if that
 * is shorter. scratch as for encoding. Any thread. */
void encoder_pack(const struct encoder *encoder, uint8_t *wire, void *scratch,
                  struct encoder_result *result);

/* The mean of all workers' payloads of the block has come, values [rows * cols] what it decodes to,
 * of a codec whose payloads stand for more than they say (CODEC_POWERSGD_SHARED): values = the mean
 * gradient. scratch as for encoding. */
void encoder_expand(struct encoder *encoder, size_t block, float *values, void *scratch);

/* Ahead of a step of such a codec that is encoded elsewhere: does to the block's state what
 * encoder_encode() would, and gives the factor that is shared -> factor [state_values - 1] of
 * encoder_step_of(): [rank, rows] if it returns true, else [rank, cols]. */
bool encoder_share(struct encoder *encoder, size_t block, float *factor);

/* What a checkpoint keeps: residuals and factors, as bytes [encoder_state_bytes]. Loading refuses
 * with MISMATCH what another spec or other blocks saved, with CORRUPT damaged bytes; the encoder is
 * unchanged then. One thread, while no block is being encoded. */
size_t encoder_state_bytes(const struct encoder *encoder);
void encoder_save(const struct encoder *encoder, uint8_t *bytes);
enum status encoder_load(struct encoder *encoder, const uint8_t *bytes, size_t count) WARN_UNUSED;

#endif
