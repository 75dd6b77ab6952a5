/* The scheme topk: of each 4096 values the k largest magnitudes, of a fixed size; and its form over
 * the whole block, `global`. Layouts in scheme.h.
 *
 * Sources: Lin et al., "Deep gradient compression", ICLR 2018; Peng et al., "DeMo", 2024 (chunks).
 */
#include "compression/scheme.h"
#include "compression/top_select.h"

#include <math.h>

#define CHUNK      ((size_t)4096)
#define SAMPLE     ((size_t)16384)
#define SUMMED     ((size_t)512) /* values that are sent, of which squares are added up first */
#define HEAD       ((size_t)4)
#define VARINT_MAX ((size_t)5)
#define NO_LENGTH  SIZE_MAX

struct chunk_scratch {
    uint32_t guess;
    uint32_t indices[CHUNK + LOOP_LIST_PAD];
    uint32_t keys[CHUNK];
};

static size_t share(float density, size_t n) {
    size_t k = (size_t)lrint((double)density * (double)n);
    if (k > n) k = n;
    return k > 0 ? k : 1;
}

/* Values that a chunk of n sends. */
static size_t chunk_share(size_t k, size_t n) {
    return (k * n + CHUNK - 1) / CHUNK;
}

static size_t index_bytes(size_t k) {
    return (12 * k + 7) / 8;
}

static size_t chunk_bound(const struct scheme_run *run) {
    size_t k = share(run->density, CHUNK), last = chunk_share(k, run->count % CHUNK);
    size_t whole = run->count / CHUNK * (index_bytes(k) + 2 * k);
    return HEAD + whole + index_bytes(last) + 2 * last;
}

static size_t chunk_scratch_bytes(const struct scheme_run *run) {
    (void)run;
    return sizeof(struct chunk_scratch);
}

static size_t chunk_start(const struct scheme_run *run, uint8_t *wire) {
    struct chunk_scratch *scratch = run->scratch;
    scratch->guess = 0;
    scheme_put_u32(wire, (uint32_t)share(run->density, CHUNK));
    return HEAD;
}

static double put_values(const float *a, const uint32_t *indices, size_t k, uint8_t *wire) {
    double squares = 0;
    for (size_t i = 0; i < k; i++) {
        uint16_t half = bf16_from_float(a[indices[i]]);
        double value = (double)bf16_to_f32(half);
        memcpy(wire + 2 * i, &half, sizeof half);
        squares += value * value;
    }
    return squares;
}

static size_t chunk_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                           uint8_t *wire, double *squares) {
    struct chunk_scratch *scratch = run->scratch;
    size_t k = chunk_share(share(run->density, CHUNK), n), packed = index_bytes(k);
    (void)offset;
    top_select(run->loops, a, n, k, scratch->indices, scratch->keys, &scratch->guess);
    memset(wire, 0, packed);
    for (size_t i = 0; i < k; i++) {
        uint32_t bits = scratch->indices[i] << (i % 2 * 4);
        uint8_t *at = wire + 12 * i / 8;
        at[0] = (uint8_t)(at[0] | bits);
        at[1] = (uint8_t)(at[1] | bits >> 8);
    }
    *squares += put_values(a, scratch->indices, k, wire + packed);
    return packed + 2 * k;
}

static uint32_t chunk_index(const uint8_t *wire, size_t i) {
    return (uint32_t)scheme_get_u16(wire + 12 * i / 8) >> (i % 2 * 4) & 0xfff;
}

static bool head_open(struct scheme_view *view, size_t most) {
    if (view->bytes < HEAD) return false;
    view->number[0] = scheme_get_u32(view->wire);
    view->head = HEAD;
    return view->number[0] >= 1 && view->number[0] <= most;
}

static bool chunk_open(struct scheme_view *view) {
    return head_open(view, CHUNK);
}

static size_t chunk_measure(const struct scheme_view *view, size_t offset, size_t n,
                            const uint8_t *at, size_t left) {
    size_t k = chunk_share(view->number[0], n), bytes = index_bytes(k) + 2 * k;
    (void)offset;
    if (view->trusted) return bytes;
    if (left < bytes) return NO_LENGTH;
    for (size_t i = 0, least = 0; i < k; i++) {
        size_t index = chunk_index(at, i);
        if (index < least || index >= n) return NO_LENGTH;
        least = index + 1;
    }
    if (k % 2 == 1 && at[index_bytes(k) - 1] >> 4 != 0) return NO_LENGTH;
    return bytes;
}

static void put_value(float *out, uint32_t index, const uint8_t *wire, bool add) {
    float value = bf16_to_f32(scheme_get_u16(wire));
    out[index] = add ? out[index] + value : value;
}

static void chunk_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                         float *out, bool add) {
    size_t k = chunk_share(view->number[0], n), packed = index_bytes(k);
    (void)offset;
    if (!add) memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < k; i++)
        put_value(out, chunk_index(at, i), at + packed + 2 * i, add);
}

static void take_value(float *a, uint32_t index, const uint8_t *wire) {
    float left = a[index] - bf16_to_f32(scheme_get_u16(wire));
    a[index] = isfinite(left) ? left : 0.0f;
}

static void chunk_subtract(const struct scheme_view *view, size_t offset, size_t n,
                           const uint8_t *at, float *a) {
    size_t k = chunk_share(view->number[0], n), packed = index_bytes(k);
    (void)offset;
    for (size_t i = 0; i < k; i++)
        take_value(a, chunk_index(at, i), at + packed + 2 * i);
}

const struct scheme scheme_topk = {
    .id = CODEC_TOPK,
    .warms_up = true,
    .planes = 1,
    .tile = CHUNK,
    .bound = chunk_bound,
    .scratch_bytes = chunk_scratch_bytes,
    .start = chunk_start,
    .encode = chunk_encode,
    .open = chunk_open,
    .measure = chunk_measure,
    .decode = chunk_decode,
    .subtract = chunk_subtract,
};

/* ---- global ---- */

/* A gap takes a byte, and one more at most for each 128 places that it skips. */
static size_t global_bound(const struct scheme_run *run) {
    return HEAD + 3 * share(run->density, run->count) + run->count / 128;
}

static size_t global_scratch_bytes(const struct scheme_run *run) {
    return (2 * run->count + LOOP_LIST_PAD) * sizeof(uint32_t);
}

static size_t global_start(const struct scheme_run *run, uint8_t *wire) {
    scheme_put_u32(wire, (uint32_t)share(run->density, run->count));
    return HEAD;
}

/* The threshold of an even sample: where the search for the exact one begins. */
static uint32_t sample_threshold(const float *a, size_t n, float density, uint32_t *keys) {
    size_t stride = (n + SAMPLE - 1) / SAMPLE, count = 0;
    for (size_t i = 0; i < n; i += stride)
        keys[count++] = f32_bits(a[i]) & F32_MAGNITUDE;
    return top_select_key(keys, count, share(1.5f * density, count));
}

static size_t global_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                            uint8_t *wire, double *squares) {
    uint32_t *indices = run->scratch, *keys = indices + n + LOOP_LIST_PAD;
    size_t k = share(run->density, n);
    uint8_t *at = wire;
    (void)offset;
    uint32_t guess = sample_threshold(a, n, run->density, keys);
    top_select(run->loops, a, n, k, indices, keys, &guess);
    for (size_t i = 0; i < k; i++) {
        uint32_t gap = i == 0 ? indices[0] : indices[i] - indices[i - 1] - 1;
        for (; gap >= 0x80; gap >>= 7)
            *at++ = (uint8_t)(gap | 0x80);
        *at++ = (uint8_t)gap;
    }
    // In parts, so that several may be added up at once elsewhere (compression/cuda).
    for (size_t i = 0; i < k; i += SUMMED)
        *squares += put_values(a, indices + i, k - i < SUMMED ? k - i : SUMMED, at + 2 * i);
    return (size_t)(at - wire) + 2 * k;
}

static bool global_open(struct scheme_view *view) {
    return head_open(view, view->count);
}

/* The gap at wire[*at], which moves on; false if it is too long or leaves `end`. */
static bool get_gap(const uint8_t *wire, size_t *at, size_t end, uint64_t *gap) {
    *gap = 0;
    for (unsigned shift = 0; shift < 7 * VARINT_MAX && *at < end; shift += 7) {
        uint8_t byte = wire[(*at)++];
        *gap |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return byte != 0 || shift == 0; // the shortest form alone
    }
    return false;
}

static size_t global_measure(const struct scheme_view *view, size_t offset, size_t n,
                             const uint8_t *at, size_t left) {
    size_t k = view->number[0], used = 0;
    uint64_t next = 0, gap;
    (void)offset;
    if (left / 2 < k) return NO_LENGTH;
    for (size_t i = 0; i < k; i++) {
        if (!get_gap(at, &used, left - 2 * k, &gap)) return NO_LENGTH;
        next += gap + 1;
        if (next > n) return NO_LENGTH;
    }
    return used + 2 * k;
}

static void global_decode(const struct scheme_view *view, size_t offset, size_t n,
                          const uint8_t *at, float *out, bool add) {
    size_t k = view->number[0], used = 0, left = view->bytes - view->head;
    const uint8_t *values = at + left - 2 * k;
    uint64_t next = 0, gap;
    (void)offset;
    if (!add) memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < k && get_gap(at, &used, left - 2 * k, &gap); i++) {
        next += gap + 1;
        put_value(out, (uint32_t)(next - 1), values + 2 * i, add);
    }
}

static void global_subtract(const struct scheme_view *view, size_t offset, size_t n,
                            const uint8_t *at, float *a) {
    size_t k = view->number[0], used = 0, left = view->bytes - view->head;
    const uint8_t *values = at + left - 2 * k;
    uint64_t next = 0, gap;
    (void)offset, (void)n;
    for (size_t i = 0; i < k && get_gap(at, &used, left - 2 * k, &gap); i++) {
        next += gap + 1;
        take_value(a, (uint32_t)(next - 1), values + 2 * i);
    }
}

static size_t global_prefix(const uint8_t *wire, size_t bytes) {
    return bytes - 2 * (size_t)scheme_get_u32(wire);
}

const struct scheme scheme_topk_global = {
    .id = CODEC_TOPK_GLOBAL,
    .warms_up = true,
    .planes = 2,
    .bound = global_bound,
    .scratch_bytes = global_scratch_bytes,
    .start = global_start,
    .encode = global_encode,
    .open = global_open,
    .measure = global_measure,
    .decode = global_decode,
    .subtract = global_subtract,
    .prefix = global_prefix,
};
