/* Proves the frame header: its 96 bytes are the golden ones below, written by hand from the layout
 * in proto/frame.h (the CRC by a bit-by-bit CRC-32C in another language); decoding gives back what
 * was encoded; every flip of one bit, in header or payload, and every wrong field under a right CRC
 * is refused.
 */
#include "base/checksum.h"
#include "proto/codec_id.h"
#include "proto/frame.h"
#include "tests/test.h"

#include <stdbool.h>

static const struct frame example = {.kind = FRAME_PUSH,
                                     .codec = CODEC_INT8,
                                     .job = UINT64_C(0x0102030405060708),
                                     .epoch = UINT64_C(0x1112131415161718),
                                     .session = UINT64_C(0x2122232425262728),
                                     .seq = UINT64_C(0x3132333435363738),
                                     .block_version = UINT64_C(0x4142434445464748),
                                     .block = UINT64_C(0x5152535455565758),
                                     .value_count = UINT32_C(0x61626364),
                                     .payload_bytes = UINT32_C(0x00727374),
                                     .payload_xxh3 = UINT64_C(0x8182838485868788),
                                     .scalar = -1.5,
                                     .check = UINT32_C(0x91929394),
                                     .rank = UINT16_C(0xa1a2),
                                     .ticket = UINT32_C(0xb1b2b3b4)};

static const uint8_t golden[FRAME_BYTES] = {
    0x52, 0x42, 0x54, 0x31, 0x01, 0x03, 0x02, 0x00, /* magic, version, kind, codec, flags */
    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, /* job */
    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* epoch */
    0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, /* session */
    0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, /* seq */
    0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, /* block_version */
    0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51, /* block */
    0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x00, /* value_count, payload_bytes */
    0x88, 0x87, 0x86, 0x85, 0x84, 0x83, 0x82, 0x81, /* payload_xxh3 */
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0xbf, /* scalar: -1.5 is 0xbff8000000000000 */
    0x94, 0x93, 0x92, 0x91, 0xa2, 0xa1, 0x00, 0x00, /* staleness, rank, reserved */
    0xb4, 0xb3, 0xb2, 0xb1,                         /* ticket */
    0x7d, 0xb9, 0xac, 0x10,                         /* header_crc32c */
};

/* CRC-32C from its definition: reflected polynomial 0x82f63b78, a bit at a time. */
static uint32_t crc32c_by_bits(const uint8_t *bytes, size_t count) {
    uint32_t crc = UINT32_C(0xffffffff);
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

static void seal(uint8_t header[FRAME_BYTES]) {
    uint32_t crc = crc32c_by_bits(header, FRAME_BYTES - 4);
    for (size_t i = 0; i < 4; i++)
        header[FRAME_BYTES - 4 + i] = (uint8_t)(crc >> (8 * i));
}

static bool frames_equal(const struct frame *a, const struct frame *b) {
    return a->kind == b->kind && a->codec == b->codec && a->job == b->job && a->epoch == b->epoch &&
           a->session == b->session && a->seq == b->seq && a->block_version == b->block_version &&
           a->block == b->block && a->value_count == b->value_count &&
           a->payload_bytes == b->payload_bytes && a->payload_xxh3 == b->payload_xxh3 &&
           memcmp(&a->scalar, &b->scalar, sizeof a->scalar) == 0 && a->staleness == b->staleness &&
           a->check == b->check && a->exact == b->exact && a->rank == b->rank &&
           a->ticket == b->ticket;
}

static void golden_bytes(void) {
    uint8_t header[FRAME_BYTES];
    memset(header, 0xee, sizeof header);
    frame_encode(&example, header);
    for (size_t i = 0; i < FRAME_BYTES; i++)
        CHECK_INT(header[i], golden[i]);
}

static void round_trip(void) {
    for (int kind = FRAME_INIT; kind <= FRAME_MEAN; kind++) {
        struct frame frame = example;
        struct frame back = {0};
        uint8_t header[FRAME_BYTES];
        frame.kind = (enum frame_kind)kind;
        frame.exact = kind == FRAME_PULL;
        if (kind != FRAME_PULL && kind != FRAME_PUSH) {
            frame.staleness = frame.check;
            frame.check = 0;
        }
        frame.scalar = kind == FRAME_COMMIT ? (double)NAN : 1e300;
        frame.payload_bytes = kind == FRAME_PULL ? 0 : FRAME_PAYLOAD_MAX;
        frame_encode(&frame, header);
        CHECK_INT(frame_decode(header, &back), STATUS_OK);
        CHECK(frames_equal(&frame, &back));
    }
}

static void every_header_bit_counts(void) {
    uint8_t header[FRAME_BYTES];
    const struct frame untouched = {.kind = FRAME_INIT, .ticket = 7};
    frame_encode(&example, header);
    for (size_t bit = 0; bit < 8 * FRAME_BYTES; bit++) {
        struct frame frame = untouched;
        header[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        CHECK_INT(frame_decode(header, &frame), STATUS_CORRUPT);
        CHECK(frames_equal(&frame, &untouched));
        header[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    struct frame frame;
    CHECK_INT(frame_decode(header, &frame), STATUS_OK);
}

/* A field that is wrong under a right CRC: from another version, or from someone hostile. */
static enum status decode_with(size_t offset, uint8_t value) {
    uint8_t header[FRAME_BYTES];
    struct frame frame;
    frame_encode(&example, header);
    header[offset] = value;
    seal(header);
    return frame_decode(header, &frame);
}

static void wrong_fields(void) {
    CHECK_INT(decode_with(0, 0x53), STATUS_CORRUPT);
    CHECK_INT(decode_with(4, 2), STATUS_UNSUPPORTED);
    CHECK_INT(decode_with(4, 0), STATUS_UNSUPPORTED);
    CHECK_INT(decode_with(5, 0), STATUS_CORRUPT);
    CHECK_INT(decode_with(5, FRAME_MEAN + 1), STATUS_CORRUPT);
    CHECK_INT(decode_with(7, 1), STATUS_CORRUPT);     /* in a pull only */
    CHECK_INT(decode_with(63, 0x04), STATUS_CORRUPT); /* over FRAME_PAYLOAD_MAX */
    CHECK_INT(decode_with(86, 1), STATUS_CORRUPT);
    CHECK_INT(decode_with(87, 1), STATUS_CORRUPT);
    CHECK_INT(decode_with(5, FRAME_WEIGHTS), STATUS_OK);
    CHECK_INT(decode_with(63, 0x03), STATUS_OK);
}

static void payload_checks(void) {
    uint8_t payload[257];
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)(i * 37 + 11);
    struct frame frame = example;
    frame.payload_bytes = sizeof payload;
    frame.payload_xxh3 = checksum_xxh3(payload, sizeof payload);
    CHECK_INT(frame_check_payload(&frame, payload, sizeof payload), STATUS_OK);
    CHECK_INT(frame_check_payload(&frame, payload, sizeof payload - 1), STATUS_CORRUPT);
    for (size_t bit = 0; bit < 8 * sizeof payload; bit++) {
        payload[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        CHECK_INT(frame_check_payload(&frame, payload, sizeof payload), STATUS_CORRUPT);
        payload[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    frame.payload_bytes = 0;
    frame.payload_xxh3 = checksum_xxh3(payload, 0);
    CHECK_INT(frame_check_payload(&frame, payload, 0), STATUS_OK);
}

int main(void) {
    TEST_RUN(golden_bytes);
    TEST_RUN(round_trip);
    TEST_RUN(every_header_bit_counts);
    TEST_RUN(wrong_fields);
    TEST_RUN(payload_checks);
    return 0;
}
