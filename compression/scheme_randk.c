/* The scheme randk: values at random places that a seed tells, so that only the values travel.
 * Layout in scheme.h.
 *
 * The block is cut into runs of up to 64 values and the runs into groups of `period`; of each group
 * one run is sent, the next one each step, from a start that differs by group: in `period` steps
 * every value is sent once. All workers send the same places, since the key knows no worker.
 * Without feedback values are multiplied by the period, which makes their mean that of the
 * gradient, and none is read but those that are sent.
 * Source: Wang et al., "CocktailSGD", ICML 2023 (rolling mask).
 */
#include "compression/randk_places.h"
#include "compression/scheme.h"

#include <math.h>

#define HEAD ((size_t)RANDK_HEAD)
#define TILE ((size_t)2048)
#define LINE ((size_t)16) /* floats that memory brings at once */

/* Groups whose runs are fetched before they are looked at: each lies elsewhere. */
#define GROUPS_AHEAD ((size_t)8)

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

/* Adds the squares of the halves to *squares, one after the other. */
static void add_squares(const uint8_t *halves, size_t n, double *squares) {
    for (size_t i = 0; i < n; i++) {
        double value = (double)bf16_to_f32(scheme_get_u16(halves + 2 * i));
        *squares += value * value;
    }
}

/* With feedback: values are sent as they are, since what is not sent waits. */
static size_t encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                     uint8_t *wire, double *squares) {
    uint32_t number[RANDK_NUMBERS];
    size_t first, end, size, used = 0;
    make_head(run, number);
    tile_runs(number, offset, n, &first, &end);
    for (size_t at = next_pick(number, first, end); at < end; at = next_pick(number, at + 1, end)) {
        size_t from = run_at(number, at, offset, n, &size);
        run->loops->bf16_encode(a + from, size, wire + used);
        add_squares(wire + used, size, squares);
        used += 2 * size;
    }
    return used;
}

static size_t group_run(const uint32_t number[RANDK_NUMBERS], size_t group) {
    return (size_t)randk_run(number, group) << number[RANDK_RUN_LOG2];
}

/* It may be past the block's end: fetching cannot fail. */
static void fetch_run(const uint32_t number[RANDK_NUMBERS], size_t group, const float *values) {
    const float *run = values + group_run(number, group);
    for (size_t i = 0; i >> number[RANDK_RUN_LOG2] == 0; i += LINE)
        __builtin_prefetch(run + i);
}

/* The squares are added up tile by tile, as encode()'s are. */
static size_t pick(const struct scheme_run *run, const float *values, float scale, uint8_t *wire,
                   struct scheme_seen *seen) {
    uint32_t number[RANDK_NUMBERS];
    size_t used = start(run, wire), tile = 0, from, whole;
    double squares = 0;
    memcpy(number, wire, sizeof number);
    whole = (size_t)1 << number[RANDK_RUN_LOG2];
    float factor = (float)number[RANDK_PERIOD];
    for (size_t group = 0; group < GROUPS_AHEAD; group++)
        fetch_run(number, group, values);
    for (size_t group = 0; (from = group_run(number, group)) < run->count; group++) {
        size_t size = run->count - from < whole ? run->count - from : whole;
        fetch_run(number, group + GROUPS_AHEAD, values);
        run->loops->bf16_scaled(values + from, size, scale, factor, wire + used, &seen->max_bits);
        if (from / TILE != tile) {
            seen->squares += squares;
            squares = 0;
            tile = from / TILE;
        }
        add_squares(wire + used, size, &squares);
        used += 2 * size;
    }
    seen->squares += squares;
    seen->gradient_squares = seen->squares / (double)number[RANDK_PERIOD];
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
    .tile = TILE,
    .bound = bound,
    .start = start,
    .encode = encode,
    .pick = pick,
    .open = open,
    .measure = measure,
    .decode = decode,
    .prefix = prefix,
};
