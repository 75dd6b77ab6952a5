#include "proto/frame.h"

#include "base/assert.h"
#include "base/checksum.h"

#include <string.h>

enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_KIND = 5,
    AT_CODEC = 6,
    AT_FLAGS = 7,
    AT_JOB = 8,
    AT_EPOCH = 16,
    AT_SESSION = 24,
    AT_SEQ = 32,
    AT_BLOCK_VERSION = 40,
    AT_BLOCK = 48,
    AT_VALUE_COUNT = 56,
    AT_PAYLOAD_BYTES = 60,
    AT_PAYLOAD_XXH3 = 64,
    AT_SCALAR = 72,
    AT_STALENESS = 80,
    AT_RANK = 84,
    AT_RESERVED = 86,
    AT_TICKET = 88,
    AT_CRC32C = 92
};

enum { FLAG_EXACT = 1 };

_Static_assert(AT_CRC32C + sizeof(uint32_t) == 96, "the CRC is the last field");
_Static_assert(sizeof(double) == sizeof(uint64_t), "a scalar travels as the bits of a binary64");

/* Bytes are placed one by one, so that the layout depends neither on the chip's byte order nor on
 * how a compiler lays out a struct. Compilers make single moves of these loops. */
static void put(uint8_t *bytes, uint64_t value, size_t count) {
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *bytes, size_t count) {
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

/* Of a worker's request, which has a check where an answer has its staleness. */
static bool asks(enum frame_kind kind) {
    return kind == FRAME_PULL || kind == FRAME_PUSH;
}

void frame_encode(const struct frame *frame, uint8_t header[FRAME_BYTES]) {
    ASSERT(frame->kind >= FRAME_INIT && frame->kind <= FRAME_MEAN);
    ASSERT(!frame->exact || frame->kind == FRAME_PULL);
    ASSERT_OP(frame->payload_bytes, <=, FRAME_PAYLOAD_MAX);
    uint64_t scalar_bits = 0;
    memcpy(&scalar_bits, &frame->scalar, sizeof scalar_bits);

    put(header + AT_MAGIC, FRAME_MAGIC, 4);
    put(header + AT_VERSION, FRAME_VERSION, 1);
    put(header + AT_KIND, (uint64_t)frame->kind, 1);
    put(header + AT_CODEC, frame->codec, 1);
    put(header + AT_FLAGS, frame->exact ? FLAG_EXACT : 0, 1);
    put(header + AT_JOB, frame->job, 8);
    put(header + AT_EPOCH, frame->epoch, 8);
    put(header + AT_SESSION, frame->session, 8);
    put(header + AT_SEQ, frame->seq, 8);
    put(header + AT_BLOCK_VERSION, frame->block_version, 8);
    put(header + AT_BLOCK, frame->block, 8);
    put(header + AT_VALUE_COUNT, frame->value_count, 4);
    put(header + AT_PAYLOAD_BYTES, frame->payload_bytes, 4);
    put(header + AT_PAYLOAD_XXH3, frame->payload_xxh3, 8);
    put(header + AT_SCALAR, scalar_bits, 8);
    put(header + AT_STALENESS, asks(frame->kind) ? frame->check : frame->staleness, 4);
    put(header + AT_RANK, frame->rank, 2);
    put(header + AT_RESERVED, 0, 2);
    put(header + AT_TICKET, frame->ticket, 4);
    put(header + AT_CRC32C, checksum_crc32c(header, AT_CRC32C), 4);
}

enum status frame_decode(const uint8_t header[FRAME_BYTES], struct frame *frame) {
    if (get(header + AT_MAGIC, 4) != FRAME_MAGIC) return STATUS_CORRUPT;
    if (get(header + AT_CRC32C, 4) != checksum_crc32c(header, AT_CRC32C)) return STATUS_CORRUPT;
    if (header[AT_VERSION] != FRAME_VERSION) return STATUS_UNSUPPORTED;
    uint8_t kind = header[AT_KIND];
    if (kind < FRAME_INIT || kind > FRAME_MEAN) return STATUS_CORRUPT;
    uint8_t flags = kind == FRAME_PULL ? FLAG_EXACT : 0;
    if ((header[AT_FLAGS] & ~flags) != 0 || get(header + AT_RESERVED, 2) != 0)
        return STATUS_CORRUPT;
    if (get(header + AT_PAYLOAD_BYTES, 4) > FRAME_PAYLOAD_MAX) return STATUS_CORRUPT;

    uint64_t scalar_bits = get(header + AT_SCALAR, 8);
    double scalar = 0;
    memcpy(&scalar, &scalar_bits, sizeof scalar);
    *frame = (struct frame){
        .kind = (enum frame_kind)kind,
        .codec = header[AT_CODEC],
        .job = get(header + AT_JOB, 8),
        .epoch = get(header + AT_EPOCH, 8),
        .session = get(header + AT_SESSION, 8),
        .seq = get(header + AT_SEQ, 8),
        .block_version = get(header + AT_BLOCK_VERSION, 8),
        .block = get(header + AT_BLOCK, 8),
        .value_count = (uint32_t)get(header + AT_VALUE_COUNT, 4),
        .payload_bytes = (uint32_t)get(header + AT_PAYLOAD_BYTES, 4),
        .payload_xxh3 = get(header + AT_PAYLOAD_XXH3, 8),
        .scalar = scalar,
        .staleness = asks((enum frame_kind)kind) ? 0 : (uint32_t)get(header + AT_STALENESS, 4),
        .check = asks((enum frame_kind)kind) ? (uint32_t)get(header + AT_STALENESS, 4) : 0,
        .exact = header[AT_FLAGS] == FLAG_EXACT,
        .rank = (uint16_t)get(header + AT_RANK, 2),
        .ticket = (uint32_t)get(header + AT_TICKET, 4)};
    return STATUS_OK;
}

enum status frame_check_payload(const struct frame *frame, const uint8_t *payload,
                                size_t payload_bytes) {
    if (payload_bytes != frame->payload_bytes) return STATUS_CORRUPT;
    if (checksum_xxh3(payload, payload_bytes) != frame->payload_xxh3) return STATUS_CORRUPT;
    return STATUS_OK;
}
