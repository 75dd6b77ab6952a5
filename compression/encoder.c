#include "compression/encoder.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/memory.h"
#include "compression/codec_residual.h"
#include "compression/lossless.h"
#include "compression/scheme.h"

#include <math.h>
#include <stdlib.h>

#define LOCO_BETA  0.8f
#define LOCO_RESET 1024

/* Rows whose first value is fetched before it is looked at. */
#define ROWS_AHEAD 12

/* Low rank is worth its work if it sends at most half as many values. */
#define LOW_RANK_GAIN 2

/* Magic of saved states, then the digest of spec and shapes, and that of the bytes. */
#define STATE_MAGIC 0x3154534352ULL
#define STATE_HEAD  ((size_t)24)

struct block {
    uint64_t id;
    size_t rows, cols, count;
    size_t residual, state; /* where they begin, in bytes and in floats */
};

struct encoder {
    struct codec_spec spec;
    const struct scheme *scheme; /* the spec's */
    const struct codec_loops *loops;
    struct block *blocks;
    size_t block_count, most_count;
    uint64_t seed, dense_steps, ramp_steps;
    uint32_t lane;
    bool averages;
    uint8_t *residuals; /* [residual_bytes], each block's aligned */
    float *states;      /* [state_values] */
    size_t residual_bytes, state_values;
    size_t scheme_scratch; /* most that a scheme wants */
    size_t inner_most;     /* bytes of the longest payload before packing */
};

/* What the pass over one block knows. */
struct pass {
    const struct encoder *encoder;
    const struct block *block;
    const struct scheme *scheme;
    struct scheme_run run;
    struct scheme_view view;
    const float *values;
    float scale;
    float beta;
    bool feedback;
    uint8_t *residual;
    float *a, *kept, *sent; /* a tile each; the block for schemes that want it whole */
    uint32_t max_bits;
    struct encoder_result *result;
};

uint64_t encoder_default_dense(uint64_t steps) {
    return steps / 50 > 100 ? steps / 50 : 100;
}

uint64_t encoder_default_ramp(uint64_t steps) {
    return encoder_default_dense(steps);
}

float encoder_density(float target, uint64_t dense_steps, uint64_t ramp_steps, uint64_t step) {
    uint64_t stages = 0;
    float density = 0.25f;
    if (step < dense_steps) return 1.0f;
    while (density > target) {
        density /= 4;
        stages++;
    }
    step -= dense_steps;
    if (step >= ramp_steps || stages == 0) return target;
    density = 0.25f;
    for (uint64_t stage = step * stages / ramp_steps; stage > 0; stage--)
        density /= 4;
    return density;
}

static struct scheme_run make_run(const struct encoder *encoder, const struct block *block,
                                  float density) {
    return (struct scheme_run){
        .spec = &encoder->spec,
        .loops = encoder->loops,
        .count = block->count,
        .rows = block->rows,
        .cols = block->cols,
        .density = density,
        .seed = encoder->seed,
        .lane = encoder->lane,
        .averages = encoder->averages,
        .block = block->id,
    };
}

/* The scheme for a block once the dense steps are over. */
static const struct scheme *block_scheme(const struct encoder *encoder, const struct block *block) {
    uint64_t sent = (uint64_t)encoder->spec.rank * (block->rows + block->cols);
    bool low_rank =
        encoder->scheme == &scheme_powersgd || encoder->scheme == &scheme_powersgd_shared;
    if (low_rank && sent * LOW_RANK_GAIN > block->count) return &scheme_bf16;
    return encoder->scheme;
}

/* A size that the ramp begins with may be larger than the last one's. */
static float largest_density(const struct encoder *encoder) {
    bool ramps = encoder->scheme->warms_up && encoder->ramp_steps > 0;
    return ramps && encoder->spec.density < 0.25f ? 0.25f : encoder->spec.density;
}

static size_t inner_bound(const struct encoder *encoder, const struct block *block) {
    const struct scheme *scheme = block_scheme(encoder, block);
    struct scheme_run run = make_run(encoder, block, largest_density(encoder));
    size_t bytes = scheme->bound(&run);
    if (scheme->warms_up && encoder->dense_steps > 0 && bytes < scheme_bf16.bound(&run))
        bytes = scheme_bf16.bound(&run);
    return bytes > sizeof(float) ? bytes : sizeof(float); // CODEC_FILL
}

static size_t state_values(const struct encoder *encoder, const struct block *block) {
    const struct scheme *scheme = block_scheme(encoder, block);
    struct scheme_run run = make_run(encoder, block, encoder->spec.density);
    return scheme->state_values != NULL && block->count > 0 ? scheme->state_values(&run) : 0;
}

static void measure_block(struct encoder *encoder, struct block *block) {
    const struct scheme *scheme = block_scheme(encoder, block);
    struct scheme_run run = make_run(encoder, block, largest_density(encoder));
    block->residual = encoder->residual_bytes;
    block->state = encoder->state_values;
    if (encoder->spec.feedback != FEEDBACK_NONE)
        encoder->residual_bytes +=
            arena_need(codec_residual_bytes(encoder->spec.residual, block->count));
    if (block->count == 0) return;
    encoder->state_values += state_values(encoder, block);
    size_t scratch = scheme->scratch_bytes != NULL ? scheme->scratch_bytes(&run) : 0;
    size_t inner = inner_bound(encoder, block);
    if (scratch > encoder->scheme_scratch) encoder->scheme_scratch = scratch;
    if (inner > encoder->inner_most) encoder->inner_most = inner;
    if (block->count > encoder->most_count) encoder->most_count = block->count;
}

struct encoder *encoder_open(const struct encoder_config *config) {
    struct encoder *encoder = memory_zeroed(1, sizeof *encoder);
    encoder->spec = config->spec;
    encoder->scheme = scheme_by_id((uint8_t)config->spec.codec);
    ASSERT(encoder->scheme != NULL);
    encoder->loops = config->loops != NULL ? config->loops : codec_loops_best();
    encoder->seed = config->seed;
    encoder->lane = config->lane;
    encoder->averages = config->averages;
    encoder->dense_steps = config->dense_steps;
    encoder->ramp_steps = config->ramp_steps;
    encoder->block_count = config->block_count;
    encoder->blocks = memory_zeroed(config->block_count + 1, sizeof *encoder->blocks);
    for (size_t i = 0; i < config->block_count; i++) {
        const struct encoder_block *from = &config->blocks[i];
        encoder->blocks[i] = (struct block){.id = from->id,
                                            .rows = from->rows,
                                            .cols = from->cols,
                                            .count = from->rows * from->cols};
        measure_block(encoder, &encoder->blocks[i]);
    }
    encoder->residuals = memory_zeroed(encoder->residual_bytes + 1, 1);
    encoder->states = memory_zeroed(encoder->state_values + 1, sizeof *encoder->states);
    return encoder;
}

void encoder_close(struct encoder *encoder) {
    if (encoder == NULL) return;
    free(encoder->states);
    free(encoder->residuals);
    free(encoder->blocks);
    free(encoder);
}

size_t encoder_bound(const struct encoder *encoder, size_t block) {
    ASSERT(block < encoder->block_count);
    return inner_bound(encoder, &encoder->blocks[block]) +
           (encoder->spec.zstd ? LOSSLESS_HEAD_MAX : 0);
}

size_t encoder_usual_bytes(const struct encoder *encoder, size_t block) {
    ASSERT(block < encoder->block_count);
    const struct block *of = &encoder->blocks[block];
    struct scheme_run run = make_run(encoder, of, encoder->spec.density);
    return block_scheme(encoder, of)->bound(&run);
}

static size_t tile_values(const struct encoder *encoder) {
    size_t whole = encoder->scheme->tile == 0 ? encoder->most_count : 0;
    return whole > SCHEME_TILE_MAX ? whole : SCHEME_TILE_MAX;
}

/* Row mask, three tiles, the scheme's own, and for packing the payload and what that wants. */
size_t encoder_scratch_bytes(const struct encoder *encoder) {
    size_t bytes = arena_need(encoder->most_count / 8 + 1) + arena_need(encoder->scheme_scratch) +
                   3 * arena_need(tile_values(encoder) * sizeof(float));
    if (encoder->spec.zstd)
        bytes += arena_need(encoder->inner_most) + lossless_pack_scratch(encoder->inner_most);
    return bytes;
}

static void *carve(uint8_t **scratch, size_t bytes) {
    void *piece = *scratch;
    *scratch += arena_need(bytes);
    return piece;
}

/* Marks rows that are all zero; false if none is. Most rows show a value at once. */
static bool find_zero_rows(const struct block *block, const float *values, uint8_t *bits) {
    bool any = false;
    memset(bits, 0, (block->rows + 7) / 8);
    for (size_t row = 0; row < block->rows; row++) {
        const float *from = values + row * block->cols;
        size_t col = 0;
        if (block->rows - row > ROWS_AHEAD) __builtin_prefetch(from + ROWS_AHEAD * block->cols);
        while (col < block->cols && (f32_bits(from[col]) & F32_MAGNITUDE) == 0)
            col++;
        if (col < block->cols) continue;
        bits[row / 8] = (uint8_t)(bits[row / 8] | 1U << (row % 8));
        any = true;
    }
    return any;
}

/* Settles the rows that were sent; those of the mask wait as they are. */
static double settle_rows(const struct pass *pass, size_t offset, size_t n, float *kept) {
    const struct codec_loops *loops = pass->run.loops;
    const uint8_t *mask = pass->run.zero_rows;
    size_t cols = pass->block->cols;
    double squares = 0;
    if (mask == NULL) return loops->settle(kept, pass->a, pass->sent, n, pass->beta);
    for (size_t at = 0, end; at < n; at = end) {
        size_t row = (offset + at) / cols;
        end = (row + 1) * cols - offset;
        if (end > n) end = n;
        if (scheme_row_is_zero(mask, row)) continue;
        squares += loops->settle(kept + at, pass->a + at, pass->sent + at, end - at, pass->beta);
    }
    return squares;
}

/* Are the values that wait made of the tile itself, less what was sent of it? Then they are where
 * the tile is worked on. */
static bool in_place(const struct pass *pass) {
    return pass->feedback && pass->beta == 0.0f && pass->scheme->subtract != NULL &&
           pass->run.zero_rows == NULL;
}

/* The tile as the scheme shall see it: scaled, with its residual. */
static const float *load_tile(struct pass *pass, size_t offset, size_t n, float **kept) {
    const struct codec_loops *loops = pass->run.loops;
    const float *values = pass->values + offset;
    *kept = NULL;
    if (pass->feedback)
        *kept = codec_residual_load(loops, pass->encoder->spec.residual, pass->residual, offset, n,
                                    pass->kept);
    bool as_is = !pass->feedback && pass->scale == 1.0f;
    float *to = as_is ? NULL : in_place(pass) ? *kept : pass->a;
    pass->result->gradient_square_sum +=
        loops->load(to, values, *kept, n, pass->scale, &pass->max_bits);
    if (pass->feedback && pass->run.zero_rows != NULL)
        scheme_mask_apply(pass->run.zero_rows, pass->block->cols, offset, pass->a, n);
    return as_is ? values : to;
}

/* The loops add in f32, whose range the squares of large values leave; a tile of such is rare. */
static double exact_squares(struct pass *pass, size_t offset, size_t n, const uint8_t *at) {
    double squares = 0;
    scheme_decode_tile(pass->scheme, &pass->view, offset, n, at, pass->sent, false);
    for (size_t i = 0; i < n; i++)
        squares += (double)pass->sent[i] * (double)pass->sent[i];
    return squares;
}

/* What a tile leaves over, where a scheme sent few of its values. */
static void keep_rest(struct pass *pass, size_t offset, size_t n, const uint8_t *at, float *kept) {
    ASSERT(kept != NULL);
    pass->scheme->subtract(&pass->view, offset, n, at, kept);
    for (size_t i = 0; i < n && pass->max_bits >= F32_INFINITY; i++)
        kept[i] = isfinite(kept[i]) ? kept[i] : 0.0f;
    pass->result->residual_square_sum += pass->run.loops->squares(kept, n);
}

static void encode_tile(struct pass *pass, size_t offset, size_t n, uint8_t *wire, size_t *used) {
    const struct scheme *scheme = pass->scheme;
    double squares = 0;
    float *kept;
    const float *a = load_tile(pass, offset, n, &kept);
    uint8_t *at = wire + *used;
    *used += scheme->encode(&pass->run, offset, a, n, at, &squares);
    pass->view.bytes = *used;
    bool known = squares >= 0, placed = in_place(pass);
    if ((pass->feedback && !placed && scheme->restore == NULL) || !known)
        scheme_decode_tile(scheme, &pass->view, offset, n, at, pass->sent, false);
    if (!known) squares = pass->run.loops->squares(pass->sent, n);
    if (!isfinite(squares)) squares = exact_squares(pass, offset, n, at);
    pass->result->square_sum += squares;
    if (!pass->feedback) return;
    if (scheme->restore != NULL) scheme->restore(&pass->run, at, pass->sent);
    if (placed)
        keep_rest(pass, offset, n, at, kept);
    else
        pass->result->residual_square_sum += settle_rows(pass, offset, n, kept);
    codec_residual_store(pass->run.loops, pass->encoder->spec.residual, pass->residual, offset, n,
                         kept);
}

/* All tiles; returns the payload's bytes. */
static size_t encode_tiles(struct pass *pass, uint8_t *wire) {
    const struct scheme *scheme = pass->scheme;
    size_t used = scheme->start != NULL ? scheme->start(&pass->run, wire) : 0;
    size_t count = pass->block->count;
    pass->view =
        (struct scheme_view){.loops = pass->run.loops, .wire = wire, .bytes = used, .count = count};
    if (scheme->open != NULL) ASSERT(scheme->open(&pass->view));
    for (size_t offset = 0, n; offset < count; offset += n) {
        n = scheme->tile > 0 && scheme->tile < count - offset ? scheme->tile : count - offset;
        encode_tile(pass, offset, n, wire, &used);
    }
    return used;
}

/* What is sent, and nothing else of the block; returns the payload's bytes. */
static size_t encode_picked(struct pass *pass, uint8_t *wire) {
    struct scheme_seen seen = {0};
    size_t used = pass->scheme->pick(&pass->run, pass->values, pass->scale, wire, &seen);
    pass->max_bits = seen.max_bits;
    pass->result->square_sum = seen.squares;
    pass->result->gradient_square_sum = seen.gradient_squares;
    return used;
}

const struct codec_spec *encoder_spec(const struct encoder *encoder) {
    return &encoder->spec;
}

size_t encoder_block_count(const struct encoder *encoder) {
    return encoder->block_count;
}

void encoder_step_of(const struct encoder *encoder, size_t block, uint64_t step,
                     struct encoder_step *of) {
    ASSERT(block < encoder->block_count);
    const struct codec_spec *spec = &encoder->spec;
    const struct block *planned = &encoder->blocks[block];
    const struct scheme *scheme = block_scheme(encoder, planned);
    const bool feedback = spec->feedback != FEEDBACK_NONE;
    const bool loco = spec->feedback == FEEDBACK_LOCO;
    *of = (struct encoder_step){
        .id = planned->id,
        .seed = encoder->seed,
        .lane = encoder->lane,
        .rows = planned->rows,
        .cols = planned->cols,
        .codec = scheme->id,
        .density = spec->density,
        .beta = loco ? LOCO_BETA : 0.0f,
        .restarts = loco && step > 0 && step % LOCO_RESET == 0,
        .residual_bytes = feedback ? codec_residual_bytes(spec->residual, planned->count) : 0,
        .state_values = state_values(encoder, planned)};
    if (!scheme->warms_up) return;
    of->density = encoder_density(spec->density, encoder->dense_steps, encoder->ramp_steps, step);
    if (step < encoder->dense_steps) of->codec = scheme_bf16.id;
}

static void start_step(struct pass *pass, const struct encoder_step *of, uint64_t step) {
    const struct encoder *encoder = pass->encoder;
    pass->scheme = scheme_by_id(of->codec);
    pass->run = make_run(encoder, pass->block, of->density);
    pass->run.step = step;
    pass->run.state = encoder->states + pass->block->state;
    pass->feedback = encoder->spec.feedback != FEEDBACK_NONE;
    pass->residual = encoder->residuals + pass->block->residual;
    pass->beta = of->beta;
    if (of->restarts) memset(pass->residual, 0, of->residual_bytes);
}

/* inner [result->bytes] -> wire: packed, or as it is. */
static void pack(const uint8_t *inner, uint8_t *wire, void *scratch,
                 struct encoder_result *result) {
    size_t packed = lossless_pack(result->codec, inner, result->bytes, wire, scratch);
    if (packed == 0) {
        memcpy(wire, inner, result->bytes);
        return;
    }
    result->codec = CODEC_ZSTD;
    result->bytes = packed;
}

void encoder_encode(struct encoder *encoder, size_t block, uint64_t step, const float *values,
                    float scale, uint8_t *wire, void *scratch, struct encoder_result *result) {
    ASSERT(block < encoder->block_count);
    uint8_t *left = scratch;
    struct pass pass = {.encoder = encoder,
                        .block = &encoder->blocks[block],
                        .values = values,
                        .scale = scale,
                        .result = result};
    *result = (struct encoder_result){.codec = CODEC_F32};
    if (pass.block->count == 0) return;

    struct encoder_step of;
    encoder_step_of(encoder, block, step, &of);
    start_step(&pass, &of, step);
    uint8_t *mask = carve(&left, encoder->most_count / 8 + 1);
    pass.run.scratch = carve(&left, encoder->scheme_scratch);
    pass.a = carve(&left, tile_values(encoder) * sizeof(float));
    pass.kept = carve(&left, tile_values(encoder) * sizeof(float));
    pass.sent = carve(&left, tile_values(encoder) * sizeof(float));
    bool picks = !pass.feedback && pass.scheme->pick != NULL;
    if (!picks && find_zero_rows(pass.block, values, mask)) pass.run.zero_rows = mask;

    uint8_t *inner = encoder->spec.zstd ? carve(&left, encoder->inner_most) : wire;
    result->codec = pass.scheme->id;
    result->bytes = picks ? encode_picked(&pass, inner) : encode_tiles(&pass, inner);
    if (pass.max_bits >= F32_INFINITY && !pass.scheme->carries_specials) {
        // One value that is not finite may have been rounded or left out: say it of all.
        const float nan = NAN;
        memcpy(wire, &nan, sizeof nan);
        result->codec = CODEC_FILL;
        result->bytes = sizeof nan;
        result->square_sum = (double)NAN;
        return;
    }
    if (encoder->spec.zstd) pack(inner, wire, left, result);
}

void encoder_pack(const struct encoder *encoder, uint8_t *wire, void *scratch,
                  struct encoder_result *result) {
    uint8_t *left = scratch, *inner;
    if (!encoder->spec.zstd || result->codec == CODEC_FILL || result->bytes == 0) return;
    inner = carve(&left, encoder->inner_most);
    memcpy(inner, wire, result->bytes);
    pack(inner, wire, left, result);
}

void encoder_expand(struct encoder *encoder, size_t block, float *values, void *scratch) {
    ASSERT(block < encoder->block_count);
    const struct block *of = &encoder->blocks[block];
    const struct scheme *scheme = block_scheme(encoder, of);
    if (scheme->expand == NULL) return;
    struct scheme_run run = make_run(encoder, of, encoder->spec.density);
    run.state = encoder->states + of->state;
    run.scratch = scratch;
    scheme->expand(&run, values);
}

bool encoder_share(struct encoder *encoder, size_t block, float *factor) {
    ASSERT(block < encoder->block_count);
    const struct block *of = &encoder->blocks[block];
    const struct scheme *scheme = block_scheme(encoder, of);
    struct scheme_run run = make_run(encoder, of, encoder->spec.density);
    ASSERT(scheme->share != NULL);
    run.state = encoder->states + of->state;
    return scheme->share(&run, factor);
}

/* Of all that the meaning of the saved bytes depends on. */
static uint64_t state_digest(const struct encoder *encoder) {
    char text[CODEC_TEXT_MAX] = {0};
    codec_print(&encoder->spec, text);
    text[CODEC_TEXT_MAX - 1] = (char)encoder->spec.residual;
    uint64_t digest = checksum_xxh3(text, sizeof text);
    for (size_t i = 0; i < encoder->block_count; i++) {
        const struct block *block = &encoder->blocks[i];
        uint64_t words[4] = {digest, block->id, block->rows, block->cols};
        digest = checksum_xxh3(words, sizeof words);
    }
    return digest;
}

size_t encoder_state_bytes(const struct encoder *encoder) {
    return STATE_HEAD + encoder->residual_bytes + encoder->state_values * sizeof(float);
}

void encoder_save(const struct encoder *encoder, uint8_t *bytes) {
    uint8_t *body = bytes + STATE_HEAD;
    size_t state_bytes = encoder->state_values * sizeof(float);
    memcpy(body, encoder->residuals, encoder->residual_bytes);
    memcpy(body + encoder->residual_bytes, encoder->states, state_bytes);
    const uint64_t head[3] = {STATE_MAGIC, state_digest(encoder),
                              checksum_xxh3(body, encoder->residual_bytes + state_bytes)};
    memcpy(bytes, head, sizeof head);
}

enum status encoder_load(struct encoder *encoder, const uint8_t *bytes, size_t count) {
    uint64_t head[3];
    size_t state_bytes = encoder->state_values * sizeof(float);
    if (count < STATE_HEAD) return STATUS_CORRUPT;
    memcpy(head, bytes, sizeof head);
    if (head[0] != STATE_MAGIC) return STATUS_CORRUPT;
    if (head[1] != state_digest(encoder)) return STATUS_MISMATCH;
    if (count != encoder_state_bytes(encoder)) return STATUS_CORRUPT;
    const uint8_t *body = bytes + STATE_HEAD;
    if (checksum_xxh3(body, count - STATE_HEAD) != head[2]) return STATUS_CORRUPT;
    memcpy(encoder->residuals, body, encoder->residual_bytes);
    memcpy(encoder->states, body + encoder->residual_bytes, state_bytes);
    return STATUS_OK;
}
