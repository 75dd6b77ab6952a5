/* codec_loops_int4.h - loops of codec_loops.h: int4, the rotation and the noise. Internal to
 * codec_loops_*.c.
 */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_INT4_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_INT4_H

#include "compression/codec_loops_int8.h"

/* Multipliers and key increments of Philox4x32. */
#define PHILOX_M0 0xd2511f53U
#define PHILOX_M1 0xcd9e8d57U
#define PHILOX_W0 0x9e3779b9U
#define PHILOX_W1 0xbb67ae85U
#define ROUNDS    ((size_t)10)

static const uint64_t call_places[8] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Each word of a call lies in the low half of 64 bits; the upper halves never come down. */
struct philox {
    lanes_wide c0, c1, c2, c3;
};

LANES_INLINE struct philox philox_start(const struct loop_noise *noise, size_t first) {
    struct philox state;
    memcpy(&state.c0, call_places, sizeof state.c0);
    state.c0 += (uint64_t)(noise->first / 8 + first);
    state.c1 = noise->counter[0] - (lanes_wide){0};
    state.c2 = noise->counter[1] - (lanes_wide){0};
    state.c3 = noise->counter[2] - (lanes_wide){0};
    return state;
}

LANES_INLINE void philox_round(struct philox *state, uint64_t k0, uint64_t k1) {
    lanes_wide p0 = lanes_multiply_low(state->c0, PHILOX_M0);
    lanes_wide p1 = lanes_multiply_low(state->c2, PHILOX_M1);
    state->c0 = (p1 >> 32) ^ state->c1 ^ k0;
    state->c2 = (p0 >> 32) ^ state->c3 ^ k1;
    state->c1 = p1;
    state->c3 = p0;
}

LANES_INLINE void philox_store(const struct philox *state, uint32_t *out) {
    lanes_wide low = (state->c0 & 0xffffffffU) | state->c1 << 32;
    lanes_wide high = (state->c2 & 0xffffffffU) | state->c3 << 32;
    memcpy(out, &low, sizeof low);
    memcpy(out + 16, &high, sizeof high);
}

/* The keys of the rounds, from those of the first. */
static inline void noise_keys(const struct loop_noise *noise, uint64_t keys[2 * ROUNDS]) {
    uint32_t k0 = noise->key[0], k1 = noise->key[1];
    for (size_t round = 0; round < ROUNDS; round++) {
        keys[2 * round] = k0;
        keys[2 * round + 1] = k1;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
}

/* Two sets of 64 values at a time: their rounds do not wait for each other. */
LANES_INLINE void noise_fill(const struct loop_noise *noise, const uint64_t keys[2 * ROUNDS],
                             uint32_t first[32], uint32_t second[32]) {
    for (size_t call = 0; call < 8; call += LANES / 2) {
        struct philox a = philox_start(noise, call), b = philox_start(noise, 8 + call);
        for (size_t round = 0; round < ROUNDS; round++) {
            philox_round(&a, keys[2 * round], keys[2 * round + 1]);
            philox_round(&b, keys[2 * round], keys[2 * round + 1]);
        }
        philox_store(&a, first + 2 * call);
        philox_store(&b, second + 2 * call);
    }
}

static inline void noise_one(const struct loop_noise *noise, uint32_t out[32]) {
    uint32_t unused[32];
    uint64_t keys[2 * ROUNDS];
    noise_keys(noise, keys);
    noise_fill(noise, keys, out, unused);
}

LANES_INLINE lanes_f add_flipped(lanes_f other, lanes_f value, uint32_t bits, bool exact) {
    return exact ? other + lanes_flip(value, bits) : lanes_add_flipped(other, value, bits);
}

/* 32 values: Hadamard's matrix / sqrt(32), which is its own inverse. exact: what is NaN has the
 * same sign at all levels; all else has the same bits either way. */
LANES_INLINE void hadamard_group(const float *from, float *to, bool exact, bool add) {
    lanes_f v[HAD_GROUP / LANES];
    for (size_t i = 0; i < HAD_GROUP / LANES; i++) {
        lanes_f value = lanes_load(from + i * LANES);
        value = add_flipped(LANES_SWAP(value, 1), value, 0xaaaa, exact);
        value = add_flipped(LANES_SWAP(value, 2), value, 0xcccc, exact);
#if LANES >= 8
        value = add_flipped(LANES_SWAP(value, 4), value, 0xf0f0, exact);
#endif
#if LANES >= 16
        value = add_flipped(LANES_SWAP(value, 8), value, 0xff00, exact);
#endif
        v[i] = value;
    }
    for (size_t step = 1; step < HAD_GROUP / LANES; step *= 2) {
        for (size_t i = 0; i < HAD_GROUP / LANES; i++) {
            if ((i & step) != 0) continue;
            lanes_f low = v[i], high = v[i + step];
            v[i] = low + high;
            v[i + step] = low - high;
        }
    }
    for (size_t i = 0; i < HAD_GROUP / LANES; i++)
        emit(to + i * LANES, v[i] * 0.17677669529663687f, add);
}

LANES_INLINE void hadamard_block(const float *from, float *to, bool exact, bool add) {
    for (size_t i = 0; i < LOOP_BLOCK; i += HAD_GROUP)
        hadamard_group(from + i, to + i, exact, add);
}

/* The 16 random bits of value i of a set of 64: of number i % 16 in its half of the set, the low
 * half for an even i / 16, the high half for an odd one. */
LANES_INLINE lanes_i noise_at(const uint32_t numbers[32], size_t i) {
    lanes_u r = lanes_load_u(numbers + i / 32 * 16 + i % 16);
    return (lanes_i)(i / 16 % 2 == 0 ? r & 0xffff : r >> 16);
}

/* With sr, value is in steps of 2^-16: rounded down after adding 0 .. 65535 of them. */
LANES_INLINE lanes_i int4_code(lanes_f value, const uint32_t numbers[32], size_t i, bool sr) {
    lanes_i near = lanes_round(value);
    return sr ? (near + noise_at(numbers, i)) >> 16 : near;
}

LANES_INLINE uint32_t int4_magnitude(const float *a, bool l2) {
    if (!l2) return block_max(a);
    struct sums sums = {{{0}}};
    for (size_t i = 0; i < LOOP_BLOCK; i += GROUP) {
        for (size_t p = 0; p < SUM_PARTS; p++) {
            lanes_f value = lanes_load(a + i + p * LANES);
            sums.part[p] += value * value;
        }
    }
    // The root is taken in double, where every level has the same one; half a unit up keeps it
    // above each |a|, so that no code exceeds 7.
    double norm = __builtin_sqrt((double)lanes_sum(&sums)) * (1 + 0x1p-23);
    return f32_bits((float)norm);
}

LANES_INLINE void int4_encode_block(const float *a, uint8_t *wire, int flags, bool sr,
                                    const struct loop_noise *noise, const uint64_t *keys,
                                    double *square_sum) {
    float turned[LOOP_BLOCK] __attribute__((aligned(64)));
    lanes_i sum = {0};
    uint32_t numbers[2][32] __attribute__((aligned(64)));
    if ((flags & INT4_HAD) != 0) {
        hadamard_block(a, turned, false, false);
        a = turned;
    }
    uint16_t half = codec_scale_up(int4_magnitude(a, (flags & INT4_L2) != 0), 7.0f);
    float scale = bf16_to_f32(half), inverse = half == 0 ? 0.0f : (sr ? 65536.0f : 1.0f) / scale;
    put_half(wire, half);
    if (half == 0 || half == BF16_INFINITY) { // finite values too may turn or add up to infinity
        memset(wire + 2, half == 0 ? 0 : 0x11, LOOP_BLOCK / 2);
        if (half != 0) *square_sum += (double)scale;
        return;
    }
    if (sr) noise_fill(noise, keys, numbers[0], numbers[1]);
    for (size_t i = 0; i < LOOP_BLOCK / 2; i += LANES) {
        lanes_i low = int4_code(lanes_load(a + i) * inverse, numbers[0], i, sr);
        lanes_i high = int4_code(lanes_load(a + 64 + i) * inverse, numbers[1], i, sr);
        sum += lanes_squares(low, high);
        lanes_store_bytes(wire + 2 + i, (low & 15) | (lanes_i)((lanes_u)high << 4));
    }
    *square_sum += (double)lanes_total(sum) * ((double)scale * (double)scale);
}

LANES_INLINE void int4_encode_all(const float *a, size_t n, uint8_t *wire, int flags, bool sr,
                                  const struct loop_noise *noise, double *square_sum) {
    struct loop_noise at = *noise;
    uint64_t keys[2 * ROUNDS];
    noise_keys(noise, keys);
    for (; n >= LOOP_BLOCK; n -= LOOP_BLOCK) {
        int4_encode_block(a, wire, flags, sr, &at, keys, square_sum);
        a += LOOP_BLOCK;
        wire += LOOP_BLOCK / 2 + 2;
        at.first += LOOP_BLOCK;
    }
    if (n > 0) {
        float from[LOOP_BLOCK] = {0};
        uint8_t to[LOOP_BLOCK / 2 + 2];
        memcpy(from, a, n * sizeof *a);
        int4_encode_block(from, to, flags, sr, &at, keys, square_sum);
        memcpy(wire, to, 2 + least(n, LOOP_BLOCK / 2));
    }
}

static inline void int4_encode(const float *a, size_t n, uint8_t *wire, int flags,
                               const struct loop_noise *noise, double *square_sum) {
    if ((flags & INT4_SR) != 0)
        int4_encode_all(a, n, wire, flags, true, noise, square_sum);
    else
        int4_encode_all(a, n, wire, flags, false, noise, square_sum);
}

LANES_INLINE void int4_decode_codes(const uint8_t *codes, float scale, float *out, bool add) {
    for (size_t i = 0; i < LOOP_BLOCK / 2; i += LANES) {
        lanes_i byte = lanes_load_bytes(codes + i);
        lanes_i low = (lanes_i)((lanes_u)byte << 28) >> 28;
        emit(out + i, lanes_from_int(low) * scale, add);
        emit(out + 64 + i, lanes_from_int(byte >> 4) * scale, add);
    }
}

/* Below this magnitude of the scale nothing can become infinite, and so no NaN. */
#define HAD_FINITE 0x1p100f

LANES_INLINE void int4_decode_block(const uint8_t *wire, float *out, bool add, bool had) {
    float scale = scale_read(wire), turned[LOOP_BLOCK] __attribute__((aligned(64)));
    int4_decode_codes(wire + 2, scale, had ? turned : out, !had && add);
    if (!had) return;
    if (__builtin_fabsf(scale) < HAD_FINITE)
        hadamard_block(turned, out, false, add);
    else
        hadamard_block(turned, out, true, add);
}

LANES_INLINE void int4_decode_all(const uint8_t *wire, size_t n, float *out, bool add, bool had) {
    for (; n >= LOOP_BLOCK; n -= LOOP_BLOCK) {
        int4_decode_block(wire, out, add, had);
        out += LOOP_BLOCK;
        wire += LOOP_BLOCK / 2 + 2;
    }
    if (n > 0) {
        uint8_t from[2 + LOOP_BLOCK / 2] = {0};
        float to[LOOP_BLOCK];
        memcpy(from, wire, 2 + least(n, LOOP_BLOCK / 2));
        int4_decode_block(from, to, false, had);
        put(out, to, n, add);
    }
}

static inline void int4_decode(const uint8_t *wire, size_t n, float *out, bool add, bool had) {
    if (had && add)
        int4_decode_all(wire, n, out, true, true);
    else if (had)
        int4_decode_all(wire, n, out, false, true);
    else if (add)
        int4_decode_all(wire, n, out, true, false);
    else
        int4_decode_all(wire, n, out, false, false);
}

#endif
