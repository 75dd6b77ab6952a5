/* The list of schemes, and what several of them share. */
#include "compression/scheme.h"

#include "base/assert.h"
#include "base/random.h"

static const struct scheme *const schemes[] = {
    &scheme_none,
    &scheme_bf16,
    &scheme_fp16,
    &scheme_int8,
    &scheme_fp8,
    &scheme_int4,
    &scheme_onebit,
    &scheme_topk,
    &scheme_randk,
    &scheme_powersgd,
    &scheme_qsgd,
    &scheme_terngrad,
    &scheme_natural,
    &scheme_signsgd,
    &scheme_topk_global,
    &scheme_fill,
    &scheme_powersgd_shared,
};

#define SCHEME_COUNT (sizeof schemes / sizeof schemes[0])

const struct scheme *scheme_by_id(uint8_t id) {
    for (size_t i = 0; i < SCHEME_COUNT; i++) {
        if (schemes[i]->id == id) return schemes[i];
    }
    return NULL;
}

size_t scheme_mask_bound(const struct scheme_run *run) {
    return 5 + (run->rows + 7) / 8;
}

size_t scheme_mask_start(const struct scheme_run *run, uint8_t *wire) {
    wire[0] = run->zero_rows != NULL;
    if (run->zero_rows == NULL) return 1;
    scheme_put_u32(wire + 1, (uint32_t)run->cols);
    memcpy(wire + 5, run->zero_rows, (run->rows + 7) / 8);
    return 5 + (run->rows + 7) / 8;
}

bool scheme_mask_open(struct scheme_view *view) {
    if (view->bytes < 1 || view->wire[0] > 1) return false;
    view->head = 1;
    if (view->wire[0] == 0) return true;
    if (view->bytes < 5) return false;
    view->cols = scheme_get_u32(view->wire + 1);
    if (view->cols == 0) return false;
    size_t rows = view->count / view->cols + (view->count % view->cols != 0);
    if (view->bytes - 5 < (rows + 7) / 8) return false;
    view->zero_rows = view->wire + 5;
    view->head = 5 + (rows + 7) / 8;
    return true;
}

size_t scheme_mask_apply(const uint8_t *zero_rows, size_t cols, size_t offset, float *values,
                         size_t n) {
    size_t masked = 0, row = offset / cols, at = 0;
    while (at < n) {
        size_t end = (row + 1) * cols - offset;
        if (end > n) end = n;
        if (scheme_row_is_zero(zero_rows, row)) {
            memset(values + at, 0, (end - at) * sizeof *values);
            masked += end - at;
        }
        at = end;
        row++;
    }
    return masked;
}

void scheme_decode_tile(const struct scheme *scheme, const struct scheme_view *view, size_t offset,
                        size_t n, const uint8_t *at, float *out, bool add) {
    float tile[SCHEME_TILE_MAX];
    if (view->zero_rows == NULL || !add) {
        scheme->decode(view, offset, n, at, out, add);
        if (view->zero_rows != NULL) scheme_mask_apply(view->zero_rows, view->cols, offset, out, n);
        return;
    }
    ASSERT(n <= SCHEME_TILE_MAX); // schemes of whole blocks have no mask
    scheme->decode(view, offset, n, at, tile, false);
    scheme_mask_apply(view->zero_rows, view->cols, offset, tile, n);
    view->loops->add(out, tile, n);
}

struct loop_noise scheme_noise(const struct scheme_run *run, size_t offset) {
    return (struct loop_noise){
        .key = {(uint32_t)run->seed, RANDOM_CODEC},
        .counter = {(uint32_t)run->step, (uint32_t)run->block,
                    run->lane ^ (uint32_t)(run->seed >> 32)},
        .first = offset,
    };
}

void scheme_noise_halves(const struct scheme_run *run, size_t offset, uint16_t halves[64]) {
    struct loop_noise noise = scheme_noise(run, offset);
    uint32_t numbers[32];
    run->loops->noise(&noise, numbers);
    for (size_t i = 0; i < 64; i++)
        halves[i] = (uint16_t)(numbers[i / 32 * 16 + i % 16] >> (i / 16 % 2 * 16));
}
