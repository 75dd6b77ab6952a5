/* kernels_rig.h - what the operations of bench_kernels work on: a device and its arrays.
 *
 * Arrays are of random values of variance 1/4. What operations leave in them is read by others,
 * which does not change how long those take.
 * One thread, which drives the device.
 */
#ifndef RUBATO_BENCH_KERNELS_RIG_H
#define RUBATO_BENCH_KERNELS_RIG_H

#include "base/options.h"
#include "kernels/compute.h"

/* The options. */
struct bench {
    char device[OPTION_TEXT_MAX], json[OPTION_TEXT_MAX];
    int64_t batch, seq_len, channels, heads, vocab, square, turns, threads;
};

enum { KERNELS_TYPES = COMPUTE_TF32 + 1 }; /* of enum compute_type */

struct kernels_codec;

/* N = B T rows, I = 4 C. A wide array [N, I] is also `blocks` blocks of `block_rows` rows, as large
 * as a plan's: codecs, optimizers and norms work block by block. */
struct rig {
    const struct bench *bench;
    struct device *device;
    const struct compute_ops *ops;
    int64_t B, T, C, N, I, V, heads, logit_rows;
    int64_t block_rows, blocks;
    float *wide[4], *narrow[4], *vectors[4], *embeddings, *embedding_grad, *logits, *scratch;
    float *square[3];
    int32_t *tokens;
    struct linear *products[KERNELS_TYPES], *squares[KERNELS_TYPES]; /* NULL: not there */
    uint8_t *states;                                                 /* of optimizers */
    double *sums;                /* [blocks], and what they need for a while */
    struct kernels_codec *codec; /* that is being measured; or NULL */
};

/* MEMORY or DEVICE, logged; to be closed even so. */
enum status kernels_rig_open(struct rig *rig, const struct bench *bench,
                             struct device *device) WARN_UNUSED;
void kernels_rig_close(struct rig *rig);

/* Has the device products of this type? The host has no tf32. */
bool kernels_rig_has(const struct rig *rig, enum compute_type type);

/* Of a model in bf16, or in f32; scratch is enough for both. */
struct attention_shape kernels_rig_attention(const struct rig *rig, bool bf16);

/* Values of a block. */
int64_t kernels_rig_block(const struct rig *rig);

#endif
