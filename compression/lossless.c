#define ZSTD_STATIC_LINKING_ONLY // contexts in the caller's memory; the literals' mode
#include "compression/lossless.h"

#include "base/assert.h"
#include "base/memory.h"
#include "compression/scheme.h"

#include <math.h>
#include <zstd.h>

enum { PLANES_MAX = 5, LEVEL = -1000 };

#define ENTRY      ((size_t)8)
#define SAMPLE     ((size_t)4096)
#define NOISE_BITS 7.8 /* of a byte: above it packing is not tried */

struct planes {
    size_t count;
    size_t bytes[PLANES_MAX];
};

static size_t context_bytes(void) {
    return arena_need(ZSTD_estimateCCtxSize(1));
}

size_t lossless_pack_scratch(size_t inner_bytes) {
    return context_bytes() + arena_need(inner_bytes);
}

size_t lossless_unpack_scratch(size_t inner_bytes) {
    return arena_need(ZSTD_estimateDCtxSize()) + 2 * arena_need(inner_bytes);
}

/* inner -> out: the prefix, then the planes. */
static void split(const struct scheme *scheme, const uint8_t *inner, size_t inner_bytes,
                  uint8_t *out, struct planes *planes) {
    size_t width = scheme->planes, prefix = inner_bytes;
    if (width > 1) prefix = scheme->prefix != NULL ? scheme->prefix(inner, inner_bytes) : 0;
    size_t count = (inner_bytes - prefix) / width;
    memcpy(out, inner, prefix);
    planes->count = width > 1 ? 1 + width : 1;
    planes->bytes[0] = prefix;
    for (size_t p = 1; p < planes->count; p++)
        planes->bytes[p] = count;
    inner += prefix;
    out += prefix;
    for (size_t i = 0; width == 2 && i < count; i++) {
        uint32_t value = scheme_get_u16(inner + 2 * i);
        value = value << 1 | value >> 15;
        out[i] = (uint8_t)(value >> 8);
        out[count + i] = (uint8_t)value;
    }
    for (size_t i = 0; width == 4 && i < count; i++) {
        uint32_t value = scheme_get_u32(inner + 4 * i);
        value = value << 1 | value >> 31;
        for (size_t p = 0; p < 4; p++)
            out[p * count + i] = (uint8_t)(value >> (24 - 8 * p));
    }
}

static void join(const uint8_t *from, const struct planes *planes, uint8_t *inner) {
    size_t prefix = planes->bytes[0], count = planes->count > 1 ? planes->bytes[1] : 0;
    memcpy(inner, from, prefix);
    from += prefix;
    inner += prefix;
    for (size_t i = 0; planes->count == 3 && i < count; i++) {
        uint32_t value = (uint32_t)from[i] << 8 | from[count + i];
        uint16_t half = (uint16_t)(value >> 1 | value << 15);
        memcpy(inner + 2 * i, &half, sizeof half);
    }
    for (size_t i = 0; planes->count == 5 && i < count; i++) {
        uint32_t value = 0;
        for (size_t p = 0; p < 4; p++)
            value = value << 8 | from[p * count + i];
        scheme_put_u32(inner + 4 * i, value >> 1 | value << 31);
    }
}

/* Do the bytes look random? Judged by the entropy of a sample. */
static bool is_noise(const uint8_t *bytes, size_t count) {
    uint32_t histogram[256] = {0};
    double entropy = 0;
    if (count < SAMPLE) return false;
    for (size_t i = 0; i < SAMPLE; i++)
        histogram[bytes[i * (count / SAMPLE)]]++;
    for (int i = 0; i < 256; i++) {
        double part = (double)histogram[i] / (double)SAMPLE;
        if (part > 0) entropy -= part * log2(part);
    }
    return entropy > NOISE_BITS;
}

/* The plane's bytes on the wire; `plane` itself when it does not pack. */
static size_t pack_plane(ZSTD_CCtx *context, const uint8_t *plane, size_t bytes, uint8_t *wire) {
    if (bytes > 0 && !is_noise(plane, bytes)) {
        size_t packed = ZSTD_compress2(context, wire, bytes - 1, plane, bytes);
        if (!ZSTD_isError(packed)) return packed;
    }
    memcpy(wire, plane, bytes);
    return bytes;
}

size_t lossless_pack(uint8_t codec, const uint8_t *inner, size_t inner_bytes, uint8_t *wire,
                     void *scratch) {
    struct planes planes;
    const struct scheme *scheme = scheme_by_id(codec);
    uint8_t *split_bytes = (uint8_t *)scratch + context_bytes();
    ASSERT(scheme != NULL);
    ZSTD_CCtx *context = ZSTD_initStaticCCtx(scratch, context_bytes());
    ASSERT(context != NULL);
    ASSERT(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, LEVEL)));
    ASSERT(!ZSTD_isError(
        ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_ps_enable)));

    split(scheme, inner, inner_bytes, split_bytes, &planes);
    const uint8_t *plane = split_bytes;
    uint8_t *at = wire + 8 + ENTRY * planes.count;
    for (size_t p = 0; p < planes.count; p++) {
        size_t packed = pack_plane(context, plane, planes.bytes[p], at);
        scheme_put_u32(wire + 8 + ENTRY * p, (uint32_t)planes.bytes[p]);
        scheme_put_u32(wire + 12 + ENTRY * p, (uint32_t)packed);
        plane += planes.bytes[p];
        at += packed;
    }
    scheme_put_u32(wire, codec | (uint32_t)planes.count << 8);
    scheme_put_u32(wire + 4, (uint32_t)inner_bytes);
    size_t total = (size_t)(at - wire);
    return total < inner_bytes - inner_bytes / 32 ? total : 0;
}

/* Reads the table of planes; false unless it fits `bytes` and its own sums. */
static bool read_planes(const uint8_t *wire, size_t bytes, size_t most, struct planes *planes) {
    if (bytes < 8 || wire[2] != 0 || wire[3] != 0) return false;
    planes->count = wire[1];
    size_t inner_bytes = scheme_get_u32(wire + 4), sum = 0, packed = 8 + ENTRY * planes->count;
    if (planes->count != 1 && planes->count != 3 && planes->count != 5) return false;
    if (inner_bytes > most || bytes < packed) return false;
    for (size_t p = 0; p < planes->count; p++) {
        size_t there = scheme_get_u32(wire + 12 + ENTRY * p);
        planes->bytes[p] = scheme_get_u32(wire + 8 + ENTRY * p);
        if (there > planes->bytes[p]) return false;
        if (p > 1 && planes->bytes[p] != planes->bytes[1]) return false;
        sum += planes->bytes[p];
        packed += there;
    }
    return sum == inner_bytes && packed == bytes;
}

enum status lossless_unpack(const uint8_t *wire, size_t bytes, size_t most, void *scratch,
                            uint8_t *codec, const uint8_t **inner, size_t *inner_bytes) {
    struct planes planes;
    if (!read_planes(wire, bytes, most, &planes)) return STATUS_CORRUPT;
    uint8_t *split_bytes = (uint8_t *)scratch + arena_need(ZSTD_estimateDCtxSize());
    uint8_t *joined = split_bytes + arena_need(most), *to = split_bytes;
    ZSTD_DCtx *context = ZSTD_initStaticDCtx(scratch, ZSTD_estimateDCtxSize());
    ASSERT(context != NULL);

    const uint8_t *at = wire + 8 + ENTRY * planes.count;
    for (size_t p = 0; p < planes.count; p++) {
        size_t there = scheme_get_u32(wire + 12 + ENTRY * p);
        if (there == planes.bytes[p]) {
            memcpy(to, at, there);
        } else if (ZSTD_decompressDCtx(context, to, planes.bytes[p], at, there) !=
                   planes.bytes[p]) {
            return STATUS_CORRUPT;
        }
        to += planes.bytes[p];
        at += there;
    }
    join(split_bytes, &planes, joined);
    *codec = wire[0];
    *inner = joined;
    *inner_bytes = scheme_get_u32(wire + 4);
    return STATUS_OK;
}
