/* raw_weights.h - a worker's weights on the host, in the form in which their answers came.
 *
 * Where only devices read them (model_mirror.h), an answer is copied, not decoded: half the bytes
 * go to the device, which makes f32 of them. A block's place in the vector holds f32, or in its
 * first half the payload of CODEC_BF16; `codecs` says which. Who reads f32 on the host calls
 * raw_weights_decode() first.
 * Invariant: the bits are those of an answer that was decoded when it came. A block's codec belongs
 * to whoever its weights belong to (session.h). No memory is taken.
 */
#ifndef RUBATO_WORKER_RAW_WEIGHTS_H
#define RUBATO_WORKER_RAW_WEIGHTS_H

#include "base/status.h"
#include "kernels/device.h"
#include "proto/job.h"
#include "proto/plan.h"

/* The caller's. */
struct raw_weights {
    const struct plan *plan;
    float *values;   /* [plan.value_count] host */
    uint8_t *codecs; /* [plan.block_count] CODEC_F32 or CODEC_BF16; NULL: all is f32 */
};

/* Does a model on this device read the job's weights in the form in which they come? A line says
 * so, or why they are decoded on the host, unless --pull brings f32 or the device is the host. */
bool raw_weights_wanted(const struct job *job, bool local, const struct device *device);

/* With codecs: payload [bytes] of CODEC_F32 or CODEC_BF16 -> the block's place. CORRUPT, and
 * nothing is changed: another codec, or not of the block's count. */
enum status raw_weights_install(const struct raw_weights *raw, uint64_t block, uint8_t codec,
                                const uint8_t *payload, size_t bytes) WARN_UNUSED;

/* The block, or all of them, are f32 from now on. */
void raw_weights_decode(const struct raw_weights *raw, uint64_t block);
void raw_weights_decode_all(const struct raw_weights *raw);

/* The block with value `at` of the flat vector. Pure. */
uint64_t raw_weights_block(const struct plan *plan, uint64_t at);

#endif
