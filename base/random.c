#include "base/random.h"

#include "base/assert.h"

#include <math.h>

#define TWO_PI 6.28318530717958647692

/* Multipliers and key increments of the paper's Philox4x32 (section 4.3). */
#define MULTIPLY_0 0xd2511f53u
#define MULTIPLY_1 0xcd9e8d57u
#define WEYL_0     0x9e3779b9u
#define WEYL_1     0xbb67ae85u

void random_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)MULTIPLY_0 * c0;
        uint64_t p1 = (uint64_t)MULTIPLY_1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void random_open(struct random_stream *stream, uint64_t seed, enum random_purpose purpose,
                 uint64_t lane) {
    stream->key[0] = (uint32_t)seed;
    stream->key[1] = (uint32_t)purpose;
    stream->counter[0] = 0;
    stream->counter[1] = (uint32_t)(seed >> 32);
    stream->counter[2] = (uint32_t)lane;
    stream->counter[3] = (uint32_t)(lane >> 32);
    stream->used = 4;
}

uint32_t random_u32(struct random_stream *stream) {
    if (stream->used == 4) {
        random_philox(stream->key, stream->counter, stream->block);
        stream->counter[0]++;
        ASSERT(stream->counter[0] != 0); /* the next block would repeat the first */
        stream->used = 0;
    }
    return stream->block[stream->used++];
}

uint64_t random_u64(struct random_stream *stream) {
    uint64_t low = random_u32(stream);
    uint64_t high = random_u32(stream);
    return high << 32 | low;
}

float random_unit(struct random_stream *stream) {
    return (float)(random_u32(stream) >> 8) * 0x1p-24f;
}

/* In double, rounded once at the end, so that the last bits of libm's log and cos, which differ
 * between versions, hardly ever reach the result. */
float random_normal(struct random_stream *stream) {
    double radius = ((double)random_u32(stream) + 1.0) * 0x1p-32; /* (0, 1]: log is finite */
    double angle = (double)random_u32(stream) * 0x1p-32;
    return (float)(sqrt(-2.0 * log(radius)) * cos(TWO_PI * angle));
}

uint64_t random_below(struct random_stream *stream, uint64_t bound) {
    ASSERT(bound >= 1);
    /* 2^64 mod bound: so many of the smallest numbers are one too many of their residue. */
    uint64_t surplus = (UINT64_MAX - bound + 1) % bound;
    uint64_t number = random_u64(stream);
    while (number < surplus)
        number = random_u64(stream);
    return number % bound;
}
