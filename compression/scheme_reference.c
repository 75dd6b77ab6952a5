/* The schemes terngrad and natural: arms to compare with. Layouts in scheme.h.
 *
 * Sources: Wen et al., "TernGrad", NIPS 2017; Horvath et al., "Natural compression for distributed
 * deep learning", 2019. Both are unbiased but for TernGrad's clipping; plain loops, not vectors.
 */
#include "compression/scheme.h"

#include <math.h>

#define TILE           ((size_t)SCHEME_TILE)
#define NATURAL_LOWEST 18 /* exponents below it count as zero */

static size_t tern_bytes(size_t n) {
    return (n + 3) / 4 + 2 * ((n + TILE - 1) / TILE);
}

static size_t tern_bound(const struct scheme_run *run) {
    return tern_bytes(run->count);
}

/* max|a|, but 2.5 standard deviations at most. */
static float tern_limit(const float *a, size_t n) {
    double sum = 0, squares = 0, max = 0;
    for (size_t i = 0; i < n; i++) {
        double value = (double)a[i];
        sum += value;
        squares += value * value;
        max = fmax(max, fabs(value));
    }
    double mean = sum / (double)n;
    double most = 2.5 * sqrt(fmax(squares / (double)n - mean * mean, 0.0));
    return (float)(most > 0 && most < max ? most : max);
}

static size_t tern_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                          uint8_t *wire, double *squares) {
    float limit = tern_limit(a, n);
    uint16_t half = codec_scale_up(f32_bits(limit), 1.0f);
    float inverse = half == 0 ? 0.0f : 1.0f / bf16_to_f32(half);
    uint16_t noise[64];
    memcpy(wire, &half, sizeof half);
    memset(wire + 2, 0, (n + 3) / 4);
    for (size_t i = 0; i < n; i++) {
        if (i % 64 == 0) scheme_noise_halves(run, offset + i, noise);
        float chance = fminf(fabsf(a[i]), limit) * inverse;
        unsigned code = 0;
        if (((float)noise[i % 64] + 0.5f) * 0x1p-16f < chance) code = signbit(a[i]) ? 3 : 1;
        wire[2 + i / 4] = (uint8_t)(wire[2 + i / 4] | code << (i % 4 * 2));
    }
    *squares = -1;
    return tern_bytes(n);
}

static size_t tern_measure(const struct scheme_view *view, size_t offset, size_t n,
                           const uint8_t *at, size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return tern_bytes(n);
}

static void tern_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                        float *out, bool add) {
    float scale = bf16_to_f32(scheme_get_u16(at));
    (void)view, (void)offset;
    for (size_t i = 0; i < n; i++) {
        unsigned code = at[2 + i / 4] >> (i % 4 * 2) & 3;
        float value = code == 1 ? scale : code == 3 ? -scale : 0.0f;
        out[i] = add ? out[i] + value : value;
    }
}

const struct scheme scheme_terngrad = {
    .id = CODEC_TERNGRAD,
    .planes = 1,
    .tile = TILE,
    .bound = tern_bound,
    .encode = tern_encode,
    .measure = tern_measure,
    .decode = tern_decode,
};

static size_t natural_bound(const struct scheme_run *run) {
    return run->count;
}

static size_t natural_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                             uint8_t *wire, double *squares) {
    uint16_t noise[64];
    *squares = -1;
    for (size_t i = 0; i < n; i++) {
        if (i % 64 == 0) scheme_noise_halves(run, offset + i, noise);
        uint32_t bits = f32_bits(a[i]), magnitude = bits & F32_MAGNITUDE;
        // Random bits added to the fraction carry into the exponent as often as they should.
        int exponent = (int)((magnitude + ((uint32_t)noise[i % 64] << 7)) >> 23) - NATURAL_LOWEST;
        if (exponent < 0) exponent = 0;
        if (exponent > 127) exponent = 127;
        wire[i] = (uint8_t)(exponent == 0 ? 0 : (unsigned)exponent | (bits >> 24 & 0x80));
    }
    return n;
}

static size_t natural_measure(const struct scheme_view *view, size_t offset, size_t n,
                              const uint8_t *at, size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return n;
}

static void natural_decode(const struct scheme_view *view, size_t offset, size_t n,
                           const uint8_t *at, float *out, bool add) {
    (void)view, (void)offset;
    for (size_t i = 0; i < n; i++) {
        uint32_t exponent = at[i] & 0x7f;
        uint32_t bits = exponent == 0 ? 0 : (exponent + NATURAL_LOWEST) << 23;
        float value = f32_from_bits(bits | (uint32_t)(at[i] & 0x80) << 24);
        out[i] = add ? out[i] + value : value;
    }
}

const struct scheme scheme_natural = {
    .id = CODEC_NATURAL,
    .planes = 1,
    .tile = TILE,
    .bound = natural_bound,
    .encode = natural_encode,
    .measure = natural_measure,
    .decode = natural_decode,
};
