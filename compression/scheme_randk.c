/* The scheme randk: values at random places that a seed tells, so that only the values travel.
 * Layout in scheme.h.
 *
 * The block is cut into runs of up to 64 values and the runs into groups of `period`; of each group
 * one run is sent, the next one each step, from a start that differs by group: in `period` steps
 * every value is sent once. All workers send the same places, since the key knows no worker.
 * Without feedback values are multiplied by the period, which makes their mean that of the
 * gradient. Source: Wang et al., "CocktailSGD", ICML 2023 (rolling mask).
 */
#include "compression/randk_places.h"
#include "compression/scheme.h"

#include <math.h>

#define HEAD ((size_t)RANDK_HEAD)

static uint32_t period_of(const struct scheme_run *run) {
    return (uint32_t)lrint(1.0 / (double)run->density);
}

static void make_head(const struct scheme_run *run, uint32_t number[RANDK_NUMBERS]) {
    randk_numbers(run->count, period_of(run), run->seed, run->block, run->step, number);
}

/* The first run from `index` on that is sent in this step; `end` if none is before that. */
static size_t next_pick(const uint32_t number[RANDK_NUMBERS], size_t index, size_t end) {
    size_t period = number[RANDK_PERIOD];
    for (size_t group = index / period; group * period < end; group++) {
        size_t pick = (size_t)randk_run(number, group);
        if (pick >= index) return pick < end ? pick : end;
    }
    return end;
}

static size_t bound(const struct scheme_run *run) {
    uint32_t number[RANDK_NUMBERS];
    make_head(run, number);
    size_t runs = (run->count >> number[RANDK_RUN_LOG2]) + 1;
    return HEAD + 2 * ((runs / number[RANDK_PERIOD] + 1) << number[RANDK_RUN_LOG2]);
}

static size_t start(const struct scheme_run *run, uint8_t *wire) {
    uint32_t number[RANDK_NUMBERS];
    make_head(run, number);
    memcpy(wire, number, sizeof number);
    return HEAD;
}

/* The first run of the tile, and the one after its last. */
static void tile_runs(const uint32_t number[RANDK_NUMBERS], size_t offset, size_t n, size_t *first,
                      size_t *end) {
    *first = offset >> number[RANDK_RUN_LOG2];
    *end = (offset + n + ((size_t)1 << number[RANDK_RUN_LOG2]) - 1) >> number[RANDK_RUN_LOG2];
}

/* Where a run lies in the tile: its start; *size is shorter for the last. */
static size_t run_at(const uint32_t number[RANDK_NUMBERS], size_t index, size_t offset, size_t n,
                     size_t *size) {
    size_t from = (index << number[RANDK_RUN_LOG2]) - offset,
           whole = (size_t)1 << number[RANDK_RUN_LOG2];
    *size = n - from < whole ? n - from : whole;
    return from;
}

static size_t encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                     uint8_t *wire, double *squares) {
    uint32_t number[RANDK_NUMBERS];
    size_t first, end, size, used = 0;
    make_head(run, number);
    float scale = run->spec->feedback == FEEDBACK_NONE ? (float)number[RANDK_PERIOD] : 1.0f;
    tile_runs(number, offset, n, &first, &end);
    for (size_t at = next_pick(number, first, end); at < end; at = next_pick(number, at + 1, end)) {
        size_t from = run_at(number, at, offset, n, &size);
        for (size_t i = 0; i < size; i++) {
            uint16_t half = bf16_from_float(a[from + i] * scale);
            double value = (double)bf16_to_f32(half);
            memcpy(wire + used, &half, sizeof half);
            *squares += value * value;
            used += 2;
        }
    }
    return used;
}

static bool open(struct scheme_view *view) {
    if (view->bytes < HEAD) return false;
    memcpy(view->number, view->wire, HEAD);
    view->head = HEAD;
    return view->number[RANDK_PERIOD] >= 1 && view->number[RANDK_RUN_LOG2] <= RANDK_RUN_LOG2_MAX;
}

static size_t measure(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                      size_t left) {
    size_t first, end, size, bytes = 0;
    (void)at, (void)left;
    const uint32_t *number = view->number;
    tile_runs(number, offset, n, &first, &end);
    for (size_t run = next_pick(number, first, end); run < end;
         run = next_pick(number, run + 1, end)) {
        run_at(number, run, offset, n, &size);
        bytes += 2 * size;
    }
    return bytes;
}

static void decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                   float *out, bool add) {
    size_t first, end, size;
    if (!add) memset(out, 0, n * sizeof *out);
    const uint32_t *number = view->number;
    tile_runs(number, offset, n, &first, &end);
    for (size_t run = next_pick(number, first, end); run < end;
         run = next_pick(number, run + 1, end)) {
        size_t from = run_at(number, run, offset, n, &size);
        view->loops->bf16_decode(at, size, out + from, add);
        at += 2 * size;
    }
}

static size_t prefix(const uint8_t *wire, size_t bytes) {
    (void)wire, (void)bytes;
    return HEAD;
}

const struct scheme scheme_randk = {
    .id = CODEC_RANDK,
    .planes = 2,
    .tile = 2048,
    .bound = bound,
    .start = start,
    .encode = encode,
    .open = open,
    .measure = measure,
    .decode = decode,
    .prefix = prefix,
};
