/* push_codec.h - all of a worker's pushes: which codec each block has, and their encoders.
 *
 * With --optimizer worker:NAME shards encode their mean gradients so, too, each those of its own
 * blocks, with what feedback holds back of its own.
 *
 * --push names the codec; --push-policy says for which blocks. `all`: for every one. `auto`: not
 * where a codec that loses more than int8 does saves little and harms much: packs of vectors
 * (norms, biases) and blocks of fewer than 4096 values go as bf16. Embeddings have the codec, whose
 * payloads keep rows without a gradient at zero. Any other text is a file of lines "PATTERN CODEC":
 * the first pattern (fnmatch) that fits the block's first tensor counts; a block that no line fits
 * has --push's. Frozen blocks are never pushed.
 * Servers need to know none of it: a payload names its codec.
 * Invariant: what a push's bytes are depends on the job, the plan, the rank, the file and the
 * values of the block's pushes alone. Memory is taken by open; encoding takes none.
 */
#ifndef RUBATO_COMPRESSION_PUSH_CODEC_H
#define RUBATO_COMPRESSION_PUSH_CODEC_H

#include "base/status.h"
#include "compression/encoder.h"
#include "kernels/device.h"
#include "proto/job.h"
#include "proto/plan.h"

#include <stddef.h>
#include <stdint.h>

struct push_codec;

/* Whose: the blocks of all shards, or of this one. */
#define PUSH_CODEC_ALL UINT64_MAX

/* For worker `rank`; a shard gives the number of workers. INVALID, logged with the line: a policy's
 * file that makes no sense; IO: it cannot be read. Job and plan must outlive it. Ends the process
 * if memory is short. */
enum status push_codec_open(const struct job *job, const struct plan *plan, uint32_t rank,
                            uint64_t shard, struct push_codec **push_codec) WARN_UNUSED;
/* NULL is harmless. */
void push_codec_close(struct push_codec *push_codec);

/* Most bytes of the block's payload in any step; 0 for frozen ones and those of other shards. */
size_t push_codec_bound(const struct push_codec *push_codec, uint64_t block);

/* Most bytes once the dense steps are over, before +zstd. */
size_t push_codec_usual_bytes(const struct push_codec *push_codec, uint64_t block);

/* Memory that codecs keep: what they hold back, factors, scratch. Bytes. */
size_t push_codec_memory(const struct push_codec *push_codec);

/* values [block.count] f32 host -> wire [push_codec_bound]. seq: of the report, from 1. The owner's
 * thread. */
void push_codec_encode(struct push_codec *push_codec, uint64_t block, uint64_t seq,
                       const float *values, uint8_t *wire, struct encoder_result *result);

/* From now on devices encode, block `id` devices[owners[id]], all of one kind, not the host:
 * push_codec_queue() instead of push_codec_encode(), which is not to be called any more. Ahead of
 * the first push; the devices must outlive it, and owners [block_count], too. MEMORY: one has none
 * for this; logged, and all is as it was. */
enum status push_codec_use_devices(struct push_codec *push_codec, struct device *const *devices,
                                   int count, const uint8_t *owners) WARN_UNUSED;

/* Bytes that this would take of devices[number], which need not be open (device_describe). */
uint64_t push_codec_device_bytes(const struct push_codec *push_codec, const struct device *device,
                                 int number, const uint8_t *owners);

/* After the last push: waits for the devices, and gives their memory back. push_codec_close() does
 * so, too. Harmless without a device. */
void push_codec_leave_devices(struct push_codec *push_codec);

/* values [block.count] f32 on the block's device -> wire [push_codec_bound] there, too, or pinned,
 * or the caller waits. Queued on its DEVICE_CODEC, which is the owner's thread's; the result is
 * there when an event behind it is done. */
void push_codec_queue(struct push_codec *push_codec, uint64_t block, uint64_t seq,
                      const float *values, uint8_t *wire, bool wire_on_device);
void push_codec_result(const struct push_codec *push_codec, uint64_t block,
                       struct encoder_result *result);

/* Has a codec +zstd? Then the host packs what devices encode: wire must be its own. */
bool push_codec_packs(const struct push_codec *push_codec);

/* The mean of all pushes of the block has come, values [block.count] what it decodes to, codec that
 * of the values (decoder_inner_codec()): values = the mean gradient, where they are not yet. */
void push_codec_expand(struct push_codec *push_codec, uint64_t block, uint8_t codec, float *values);

#endif
