/* encoder_device.h - an encoder (encoder.h) whose values lie on a device, and are encoded there.
 *
 * It makes the encoder's payloads, bit for bit, and keeps what feedback holds back and powersgd's
 * factors on the device: the encoder says what a step is, and encodes nothing itself, but packs
 * payloads of +zstd, which come to the host for that. A factor that workers share is the encoder's,
 * since encoder_expand() moves it. Several devices may share an encoder's blocks, each with an
 * encoder_device for some of them. Work is queued on DEVICE_CODEC: a block's payload and result are
 * there when an event behind the call is done.
 * Memory is taken by open. One thread at a time, which alone uses that queue.
 */
#ifndef RUBATO_COMPRESSION_ENCODER_DEVICE_H
#define RUBATO_COMPRESSION_ENCODER_DEVICE_H

#include "compression/encoder.h"
#include "kernels/device.h"

struct encoder_device;

/* For an encoder that has encoded nothing; it and the device, which is not the host, must outlive
 * it. `owns` [encoder_block_count] says for which blocks; it takes memory for no others. MEMORY,
 * logged. */
enum status encoder_device_open(struct encoder_device **opened, struct device *device,
                                struct encoder *encoder, const bool *owns) WARN_UNUSED;

/* Bytes that it would take of such a device, which need not be open (device_describe). */
uint64_t encoder_device_bytes(const struct device *device, const struct encoder *encoder,
                              const bool *owns);

/* Waits for its work. Harmless on NULL. */
void encoder_device_close(struct encoder_device *encoder);

/* As encoder_encode() with scale 1: values [rows * cols] f32 on the device -> wire [encoder_bound],
 * on the device, too, or pinned, or the caller waits. Both are in use until the event. A payload of
 * +zstd goes to the host. */
void encoder_device_encode(struct encoder_device *encoder, size_t block, uint64_t step,
                           const float *values, uint8_t *wire, bool wire_on_device);

/* Behind the event, once: what encoder_encode() would have said. Packs payloads of +zstd, with the
 * encoder's scratch. */
void encoder_device_result(const struct encoder_device *encoder, size_t block, void *scratch,
                           struct encoder_result *result);

#endif
