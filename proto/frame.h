/* frame.h - the header of every message on the data channel.
 *
 * 96 bytes, little-endian, followed by `payload_bytes` of raw payload. The header is checked
 * first and whole (its own CRC32C comes last), so that no length or id is believed before; the
 * payload has an XXH3 of its own. Every version keeps magic, version and CRC where they are, so
 * that a newer frame can be told from a damaged one. docs/WIRE.md says which kind carries what.
 *
 * offset size field
 *      0    4 magic           0x31544252, "RBT1"
 *      4    1 version         1
 *      5    1 kind            enum frame_kind
 *      6    1 codec           enum codec_id of the payload
 *      7    1 flags           pull: 1, send the shard's own weights, f32, whatever --pull says;
 *                             else 0
 *      8    8 job             random id of the job; a frame of another job is refused
 *     16    8 epoch           membership number
 *     24    8 session         incarnation of the worker, server-issued
 *     32    8 seq             push, commit: the worker's report, from 1; reply: the last that had
 *                             its turn
 *     40    8 block_version   push: version of the weights that the gradient is of; pull: of those
 *                             that the worker has; reply: of now
 *     48    8 block           id in the plan
 *     56    4 value_count     values that the payload decodes to
 *     60    4 payload_bytes
 *     64    8 payload_xxh3
 *     72    8 scalar          f64. push: weight of the report, its tokens over the usual number
 *                             (the payload is multiplied by it already); commit: sum of squares of
 *                             the report; reply: the weight that the push counted with, 0 if
 *                             dropped
 *     80    4 staleness       reply: updates between the weights' version and the push's turn;
 *                check       pull, push: check of the replica of block_version that the worker has
 *                             (compression/delta.h), 0: it has none, or --pull is no delta
 *     84    2 rank            of the worker
 *     86    2 reserved        0
 *     88    4 ticket          push, pull: the worker's count of its requests for this block;
 *                            weights: that of the request answered, so that an old one is known
 *     92    4 header_crc32c   of bytes 0..91
 */
#ifndef RUBATO_PROTO_FRAME_H
#define RUBATO_PROTO_FRAME_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_BYTES       ((size_t)96)
#define FRAME_MAGIC       UINT32_C(0x31544252)
#define FRAME_VERSION     1
#define FRAME_PAYLOAD_MAX (UINT32_C(64) << 20)

enum frame_kind {
    FRAME_INIT = 1, /* worker 0 -> shard: a block's first weights, f32 */
    FRAME_PULL = 2, /* worker -> shard: send me the block */
    FRAME_PUSH = 3, /* worker -> shard: a block's gradient; answered by WEIGHTS */
    /* worker -> shard: all of push `seq` is sent and may be applied (per-push modes) */
    FRAME_COMMIT = 4,
    FRAME_WEIGHTS = 5, /* shard -> worker: a block's weights */
    /* shard -> worker: the mean gradient that leads to block_version, with --optimizer worker:NAME;
     * without a payload: that round's step is left out */
    FRAME_MEAN = 6
};

struct frame {
    enum frame_kind kind;
    uint8_t codec;
    uint64_t job, epoch, session, seq, block_version, block;
    uint32_t value_count;
    uint32_t payload_bytes;
    uint64_t payload_xxh3;
    double scalar;
    uint32_t staleness; /* INIT, COMMIT, WEIGHTS, MEAN */
    uint32_t check;     /* PULL, PUSH: in staleness' place */
    bool exact;         /* PULL */
    uint16_t rank;
    uint32_t ticket;
};

/* Writes the 96 bytes. The kind and payload_bytes <= FRAME_PAYLOAD_MAX are ASSERTed. Pure. */
void frame_encode(const struct frame *frame, uint8_t header[FRAME_BYTES]);

/* Reads and checks them. CORRUPT: bad magic, checksum, kind, flags, reserved bytes, or length over
 * the limit; UNSUPPORTED: another version, undamaged. The output is unchanged then. Pure. */
enum status frame_decode(const uint8_t header[FRAME_BYTES], struct frame *frame) WARN_UNUSED;

/* CORRUPT unless payload [payload_bytes] has the checksum that the header says. Pure. */
enum status frame_check_payload(const struct frame *frame, const uint8_t *payload,
                                size_t payload_bytes) WARN_UNUSED;

#endif
