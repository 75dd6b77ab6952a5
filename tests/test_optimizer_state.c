/* test_optimizer_state.c - proves that optimizer_step() has the same bits from the fast kernels,
 * the twin, every build and every chip, for each optimizer and each type of moments.
 *
 * Fast against twin: pieces of many shapes with random, tiny, huge and infinite values. Every build
 * and chip: the checksum of some steps of everything is a constant, which the sanitizer builds
 * (without clones, unoptimised) must meet, too. AdamW and SGD in f32: the bits of
 * kernels/optimizer.h. Muon: what it makes of a matrix with known singular vectors is, in float64,
 * the polynomial of each singular value. In tiles: the bits of a step of the whole, though a tile's
 * gradient is there for this tile only, and its weights are taken as soon as it is done.
 */
#include "base/checksum.h"
#include "base/memory.h"
#include "base/random.h"
#include "kernels/optimizer.h"
#include "kernels/optimizer_moment.h"
#include "kernels/optimizer_product.h"
#include "kernels/optimizer_state.h"
#include "tests/test.h"

enum { KINDS = OPTIMIZER_MUON + 1, TYPES = MOMENT_INT8 + 1, FILLS = 4, COUNT = 2500, SIDE = 50 };

/* Bits are a function of the arguments alone: no libm. */
static void fill(float *values, int64_t count, int kind, uint64_t lane) {
    static const float awkward[] = {0.0F,    -0.0F,    1e-45F,   -1e-45F,   1.17549435e-38F,
                                    3.4e38F, -3.4e38F, INFINITY, -INFINITY, 1.0F,
                                    -1.0F,   1e-20F};
    struct random_stream stream;
    random_open(&stream, 6, RANDOM_SIMULATOR, lane);
    for (int64_t i = 0; i < count; i++) {
        float uniform = random_unit(&stream) * 2.0F - 1.0F;
        uint64_t pick = random_below(&stream, sizeof awkward / sizeof awkward[0]);
        if (kind == 0) values[i] = uniform;
        if (kind == 1) values[i] = uniform * 1e-20F;
        if (kind == 2) values[i] = uniform * 1e15F;
        if (kind == 3) values[i] = awkward[pick];
    }
}

/* Equal bits, or a NaN each. */
static void check_same(const float *actual, const float *expected, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!(isnan(actual[i]) && isnan(expected[i])))
            CHECK_INT(optimizer_moment_bits(actual[i]), optimizer_moment_bits(expected[i]));
    }
}

/* A piece with everything a step needs. */
struct side {
    float weights[COUNT], grad[COUNT];
    uint8_t *state, *scratch;
};

static struct optimizer make_optimizer(int kind, int type) {
    return (struct optimizer){
        (enum optimizer_kind)kind, (enum moment_type)type, 0.9F, 0.95F, 1e-8F, 0.9F, 0};
}

static void side_open(struct side *side, const struct optimizer *optimizer,
                      const struct optimizer_piece *piece, int kind) {
    int64_t count = piece->rows * piece->cols;
    fill(side->weights, count, kind == 3 ? 0 : kind, 1);
    side->state = memory_zeroed(optimizer_state_bytes(optimizer, piece) + 64, 1);
    side->scratch = memory_zeroed(optimizer_scratch_bytes(optimizer, piece) + 64, 1);
}

static void side_close(struct side *side) {
    free(side->state);
    free(side->scratch);
}

/* States byte by byte, but where moments may be NaN by value. */
static void check_same_state(const struct optimizer *optimizer, const struct optimizer_piece *piece,
                             const struct side *actual, const struct side *expected, int kind) {
    size_t bytes = optimizer_state_bytes(optimizer, piece);
    if (kind != 3) {
        CHECK(memcmp(actual->state, expected->state, bytes) == 0);
    } else if (optimizer->moments == MOMENT_F32 || optimizer->kind == OPTIMIZER_ADAFACTOR) {
        check_same((const float *)(const void *)actual->state,
                   (const float *)(const void *)expected->state, (int64_t)(bytes / sizeof(float)));
    }
}

static void check_shape(const struct optimizer *optimizer, const struct optimizer_piece *piece,
                        int kind) {
    static struct side fast, plain;
    static float base[COUNT];
    int64_t count = piece->rows * piece->cols;
    side_open(&fast, optimizer, piece, kind);
    side_open(&plain, optimizer, piece, kind);
    for (int64_t step = 1; step <= 3; step++) {
        const struct optimizer_update update = {3e-3F, 0.1F, 0.3F, step};
        fill(fast.grad, count, kind, 10 + (uint64_t)step);
        memcpy(plain.grad, fast.grad, sizeof fast.grad);
        /* Delay compensation is on the way, with and without a base. */
        fill(base, count, kind, 20);
        optimizer_delay_compensate(optimizer, &update, piece, fast.weights, fast.state,
                                   step == 2 ? base : NULL, 0.5F, 3, fast.grad, fast.scratch);
        optimizer_delay_compensate_ref(optimizer, &update, piece, plain.weights, plain.state,
                                       step == 2 ? base : NULL, 0.5F, 3, plain.grad, plain.scratch);
        check_same(fast.grad, plain.grad, count);
        optimizer_step(optimizer, &update, piece, fast.weights, fast.state, fast.grad,
                       fast.scratch);
        optimizer_step_ref(optimizer, &update, piece, plain.weights, plain.state, plain.grad,
                           plain.scratch);
        check_same(fast.weights, plain.weights, count);
        check_same_state(optimizer, piece, &fast, &plain, kind);
    }
    side_close(&fast);
    side_close(&plain);
}

static void same_bits_as_the_twin(void) {
    static const struct optimizer_piece pieces[] = {
        {0, 5, true},   {1, 1, true},   {1, 17, false},     {300, 1, false}, {3, 5, true},
        {5, 3, true},   {16, 16, true}, {SIDE, SIDE, true}, {33, 47, true},  {47, 33, false},
        {8, 300, true}, {300, 8, true}, {2, 1025, false},   {1, 2048, true}};
    for (int kind = 0; kind < KINDS; kind++) {
        for (int type = 0; type < TYPES; type++) {
            const struct optimizer optimizer = make_optimizer(kind, type);
            for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
                for (int values = 0; values < FILLS; values++)
                    check_shape(&optimizer, &pieces[i], values);
            }
        }
    }
}

/* ---- a step in tiles ---- */

struct tile_log {
    struct side *side;
    const float *grad; /* of the piece */
    float tile[COUNT];
    int64_t size, next; /* where the next tile must start */
    bool whole, open;
};

/* The gradient of this tile alone, in a place that the next one takes. */
static const float *tile_grad(void *context, int64_t first, int64_t count) {
    struct tile_log *log = context;
    CHECK(!log->open && first == log->next);
    CHECK(log->whole || count <= log->size);
    fill(log->tile, COUNT, 3, 30);
    memcpy(log->tile, log->grad + first, (size_t)count * sizeof(float));
    log->open = true;
    return log->tile;
}

/* Taken by nobody else any more: a later change of the weights would show. */
static void tile_done(void *context, int64_t first, int64_t count) {
    struct tile_log *log = context;
    CHECK(log->open && first == log->next);
    memcpy(log->side->grad + first, log->side->weights + first, (size_t)count * sizeof(float));
    log->next += count;
    log->open = false;
}

static void check_tiles(const struct optimizer *optimizer, int64_t size) {
    static struct side tiled, whole;
    static struct tile_log log;
    const struct optimizer_piece piece = {2, 1025, true};
    const int64_t count = piece.rows * piece.cols;
    side_open(&tiled, optimizer, &piece, 0);
    side_open(&whole, optimizer, &piece, 0);
    for (int64_t step = 1; step <= 3; step++) {
        const struct optimizer_update update = {3e-3F, 0.1F, 0.3F, step};
        fill(whole.grad, count, 0, 10 + (uint64_t)step);
        log = (struct tile_log){.side = &tiled,
                                .grad = whole.grad,
                                .size = size,
                                .whole = optimizer->kind >= OPTIMIZER_LAMB};
        const struct optimizer_tiles tiles = {size, &log, tile_grad, tile_done};
        optimizer_step_tiles(optimizer, &update, &piece, tiled.weights, tiled.state, &tiles,
                             tiled.scratch);
        optimizer_step(optimizer, &update, &piece, whole.weights, whole.state, whole.grad,
                       whole.scratch);
        CHECK_INT(log.next, count);
        check_same(tiled.weights, whole.weights, count);
        check_same(tiled.grad, whole.weights, count);
        check_same_state(optimizer, &piece, &tiled, &whole, 0);
    }
    side_close(&tiled);
    side_close(&whole);
}

static void tiles_make_the_same_step(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        for (int type = 0; type < TYPES; type++) {
            const struct optimizer optimizer = make_optimizer(kind, type);
            check_tiles(&optimizer, 256);
            check_tiles(&optimizer, 1024);
            check_tiles(&optimizer, 4096);
        }
    }
}

static void without_momentum(void) {
    const struct optimizer_piece piece = {7, 11, false};
    for (int kind = OPTIMIZER_SGD; kind <= OPTIMIZER_NESTEROV; kind++) {
        for (int type = 0; type < TYPES; type++) {
            struct optimizer optimizer = make_optimizer(kind, type);
            optimizer.momentum = 0.0F;
            CHECK_INT(optimizer_state_bytes(&optimizer, &piece), 0);
            check_shape(&optimizer, &piece, 0);
            const struct optimizer_update update = {0.5F, 0.0F, 2.0F, 1};
            float weights[77], grad[77];
            for (int i = 0; i < 77; i++) {
                weights[i] = (float)i;
                grad[i] = 1.0F;
            }
            optimizer_step(&optimizer, &update, &piece, weights, NULL, grad, NULL);
            for (int i = 0; i < 77; i++)
                CHECK(weights[i] == (float)(i - 1));
        }
    }
}

static void f32_has_the_bits_of_optimizer_h(void) {
    static float weights[2][COUNT], m[COUNT], v[COUNT], grad[COUNT];
    static _Alignas(64) float state[2 * COUNT + 64];
    const struct optimizer_piece piece = {SIDE, SIDE, false};
    for (int kind = 0; kind < KINDS; kind++) {
        bool adam = kind == OPTIMIZER_ADAMW || kind == OPTIMIZER_MUON;
        const struct optimizer optimizer = make_optimizer(kind, MOMENT_F32);
        if (!adam && kind != OPTIMIZER_SGD) continue;
        fill(weights[0], COUNT, 0, 1);
        fill(weights[1], COUNT, 0, 1);
        memset(m, 0, sizeof m);
        memset(v, 0, sizeof v);
        memset(state, 0, sizeof state);
        for (int64_t step = 1; step <= 5; step++) {
            const struct optimizer_update update = {1e-2F, 0.1F, 0.25F, step};
            const struct adamw adamw = {1e-2F, 0.9F, 0.95F, 1e-8F, 0.1F, step, 0.25F};
            const struct sgd sgd = {1e-2F, 0.9F, 0.1F, 0.25F, step};
            fill(grad, COUNT, 0, 20 + (uint64_t)step);
            if (adam)
                optimizer_adamw(&adamw, weights[0], m, v, grad, COUNT);
            else
                optimizer_sgd(&sgd, weights[0], m, grad, COUNT);
            optimizer_step(&optimizer, &update, &piece, weights[1], state, grad, NULL);
        }
        CHECK(memcmp(weights[0], weights[1], sizeof weights[0]) == 0);
        CHECK(memcmp(m, state, sizeof m) == 0);
    }
}

/* After step 3 v keeps its bytes, in fast code and twin; in f32 the weights follow the formula with
 * v and its correction of step 3, a value at a time. */
static void v_freezes(void) {
    enum { LAST = 3 };
    static struct side sides[2];
    static uint8_t kept[8 * COUNT + 256];
    const struct optimizer_piece piece = {SIDE, SIDE - 1, false};
    const int64_t count = piece.rows * piece.cols;
    for (int type = 0; type < TYPES; type++) {
        struct optimizer optimizer = make_optimizer(OPTIMIZER_ADAMW, type);
        optimizer.freeze_v_after = LAST;
        size_t first = optimizer_moment_bytes(optimizer.moments, count);
        for (int i = 0; i < 2; i++)
            side_open(&sides[i], &optimizer, &piece, 0);
        for (int64_t step = 1; step <= 6; step++) {
            const struct optimizer_update update = {1e-2F, 0.0F, 0.5F, step};
            float before[COUNT];
            memcpy(before, sides[0].weights, sizeof before);
            for (int i = 0; i < 2; i++) {
                fill(sides[i].grad, COUNT, 0, 60 + (uint64_t)step);
                (i == 0 ? optimizer_step : optimizer_step_ref)(&optimizer, &update, &piece,
                                                               sides[i].weights, sides[i].state,
                                                               sides[i].grad, sides[i].scratch);
            }
            check_same(sides[0].weights, sides[1].weights, count);
            check_same_state(&optimizer, &piece, &sides[0], &sides[1], 0);
            const uint8_t *v = sides[0].state + first;
            if (step == LAST) memcpy(kept, v, first);
            if (step > LAST) CHECK(memcmp(kept, v, first) == 0);
            for (int64_t i = 0; i < count && step > LAST && type == MOMENT_F32; i++) {
                double m = (double)((const float *)(const void *)sides[0].state)[i];
                double root = sqrt((double)((const float *)(const void *)v)[i]);
                double m_hat = m / (1 - pow(0.9, (double)step));
                double v_root = root / sqrt(1 - pow(0.95, LAST));
                CHECK_NEAR(sides[0].weights[i], (double)before[i] - 1e-2 * m_hat / (v_root + 1e-8),
                           1e-6);
            }
        }
        for (int i = 0; i < 2; i++)
            side_close(&sides[i]);
    }
}

static void bits_are_the_known_ones(void) {
    static struct side side;
    uint64_t sums[TYPES] = {0};
    const struct optimizer_piece pieces[] = {{SIDE, SIDE, true}, {30, 70, true}, {70, 30, true}};
    for (int i = 0; i < TYPES * KINDS * 3; i++) {
        const struct optimizer optimizer = make_optimizer(i / 3 % KINDS, i / 3 / KINDS);
        const struct optimizer_piece *piece = &pieces[i % 3];
        side_open(&side, &optimizer, piece, 0);
        for (int64_t step = 1; step <= 5; step++) {
            const struct optimizer_update update = {1e-2F, 0.1F, 0.25F, step};
            fill(side.grad, COUNT, 0, 30 + (uint64_t)step);
            optimizer_delay_compensate(&optimizer, &update, piece, side.weights, side.state, NULL,
                                       0.1F, 2, side.grad, side.scratch);
            optimizer_step(&optimizer, &update, piece, side.weights, side.state, side.grad,
                           side.scratch);
        }
        size_t bytes = (size_t)(piece->rows * piece->cols) * sizeof(float);
        uint64_t *sum = &sums[i / 3 / KINDS];
        *sum = *sum * 31 + checksum_crc32c(side.weights, bytes);
        *sum = *sum * 31 + checksum_crc32c(side.state, optimizer_state_bytes(&optimizer, piece));
        side_close(&side);
    }
    CHECK_INT(sums[MOMENT_F32], INT64_C(-1991965256360909285));
    CHECK_INT(sums[MOMENT_BF16], INT64_C(-5020869038228472239));
    CHECK_INT(sums[MOMENT_INT8], INT64_C(-9010927870340726215));
}

static void products(void) {
    static float a[700 * 40], b[700 * 40], c[2][40 * 40], start[40 * 40];
    fill(a, 700 * 40, 0, 40);
    fill(b, 700 * 40, 0, 41);
    fill(start, 40 * 40, 0, 42);
    static const int64_t sizes[][3] = {{1, 1, 1},    {8, 16, 256}, {9, 17, 257}, {40, 40, 700},
                                       {7, 33, 512}, {40, 1, 3},   {3, 40, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct optimizer_product product = {sizes[i][0], sizes[i][1], sizes[i][2],
                                            start,       -1.5F,       false};
        for (int with = 0; with < 2; with++) {
            product.start = with ? start : NULL;
            if (product.inner == 0) continue;
            optimizer_product(&product, a, b, c[0]);
            optimizer_product_ref(&product, a, b, c[1]);
            check_same(c[0], c[1], product.rows * product.cols);
            double hand = with ? -1.5 * (double)start[0] : 0.0;
            for (int64_t k = 0; k < product.inner; k++)
                hand += (double)a[k] * (double)b[k * product.cols];
            CHECK_NEAR(c[0][0], hand, 1e-4);
        }
    }
    /* X X' needs only half of it. */
    for (int64_t side = 1; side <= 40; side++) {
        for (int64_t i = 0; i < side * 70; i++)
            b[i % 70 * side + i / 70] = a[i];
        const struct optimizer_product gram = {side, side, 70, NULL, 0.0F, true};
        optimizer_product(&gram, a, b, c[0]);
        optimizer_product_ref(&gram, a, b, c[1]);
        check_same(c[0], c[1], side * side);
    }
}

/* Rows of cosines are orthogonal, so G = sum of s[r] u[r] v[r]' has the singular values s. */
static double cosine(int64_t r, int64_t i, int64_t n) {
    double norm = r == 0 ? sqrt(1.0 / (double)n) : sqrt(2.0 / (double)n);
    return norm * cos(M_PI * (double)r * ((double)i + 0.5) / (double)n);
}

static double polynomial(double s) {
    for (int step = 0; step < MUON_STEPS; step++)
        s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
    return s;
}

static void muon_flattens_singular_values(void) {
    enum { N = 6 };
    static const double s[N] = {10.0, 8.0, 5.0, 2.0, 1.0, 0.5};
    const struct optimizer optimizer = make_optimizer(OPTIMIZER_MUON, MOMENT_F32);
    double norm = 0.0;
    for (int r = 0; r < N; r++)
        norm += s[r] * s[r];
    norm = sqrt(norm);
    for (int tall = 0; tall < 2; tall++) {
        const struct optimizer_piece piece = {tall ? 20 : N, tall ? N : 20, true};
        float *scratch = memory_zeroed(optimizer_scratch_bytes(&optimizer, &piece), 1);
        for (int64_t i = 0; i < N * INT64_C(20); i++) {
            int64_t row = i / piece.cols, col = i % piece.cols;
            double sum = 0.0;
            for (int64_t r = 0; r < N; r++)
                sum += s[r] * cosine(r, row, piece.rows) * cosine(r, col, piece.cols);
            scratch[i] = (float)sum;
        }
        const float *flat = optimizer_product_orthogonal(&piece, scratch);
        for (int64_t i = 0; i < N * INT64_C(20); i++) {
            int64_t row = i / piece.cols, col = i % piece.cols;
            double sum = 0.0;
            for (int64_t r = 0; r < N; r++)
                sum += polynomial(s[r] / norm) * cosine(r, row, piece.rows) *
                       cosine(r, col, piece.cols);
            CHECK_NEAR(flat[i], sum, 2e-5);
        }
        free(scratch);
    }
    for (int r = 0; r < N; r++)
        CHECK(polynomial(s[r] / norm) > 0.6 && polynomial(s[r] / norm) < 1.25);
}

/* Without a gradient ever: only decay, and no division of 0 by 0. */
static void zero_gradients(void) {
    static struct side side;
    const struct optimizer_piece piece = {10, 12, true};
    for (int i = 0; i < KINDS * TYPES; i++) {
        const struct optimizer optimizer = make_optimizer(i % KINDS, i / KINDS);
        side_open(&side, &optimizer, &piece, 0);
        memset(side.grad, 0, sizeof side.grad);
        float first = side.weights[0];
        for (int64_t step = 1; step <= 3; step++) {
            const struct optimizer_update update = {1e-2F, 0.0F, 1.0F, step};
            optimizer_step(&optimizer, &update, &piece, side.weights, side.state, side.grad,
                           side.scratch);
            optimizer_delay_compensate(&optimizer, &update, &piece, side.weights, side.state, NULL,
                                       1.0F, 1, side.grad, side.scratch);
            CHECK(side.weights[0] == first);
            CHECK(side.grad[5] == 0.0F);
        }
        side_close(&side);
    }
}

static void names_and_sizes(void) {
    enum optimizer_kind kind = OPTIMIZER_SGD;
    enum moment_type type = MOMENT_F32;
    CHECK(optimizer_find("muon", &kind) && kind == OPTIMIZER_MUON);
    CHECK(optimizer_find("nesterov", &kind) && kind == OPTIMIZER_NESTEROV);
    CHECK(!optimizer_find("adam", &kind) && kind == OPTIMIZER_NESTEROV);
    CHECK(moment_find("int8", &type) && type == MOMENT_INT8);
    CHECK(!moment_find("int4", &type) && !moment_find("", &type) && type == MOMENT_INT8);
    const struct optimizer_piece piece = {256, 64, true}, small = {256, 64, false};
    const size_t values = (size_t)256 * 64;
    struct optimizer optimizer = make_optimizer(OPTIMIZER_ADAMW, MOMENT_F32);
    CHECK_INT(optimizer_state_bytes(&optimizer, &piece), 8 * values);
    CHECK_INT(optimizer_scratch_bytes(&optimizer, &piece), 0);
    optimizer.moments = MOMENT_BF16;
    CHECK_INT(optimizer_state_bytes(&optimizer, &piece), 4 * values);
    optimizer.moments = MOMENT_INT8;
    CHECK_INT(optimizer_state_bytes(&optimizer, &piece), 2 * (values + values / 64));
    optimizer.kind = OPTIMIZER_LION;
    CHECK_INT(optimizer_state_bytes(&optimizer, &piece), values + values / 64);
    optimizer.kind = OPTIMIZER_ADAFACTOR;
    CHECK_INT(optimizer_state_bytes(&optimizer, &piece), 4 * (256 + 64));
    CHECK_INT(optimizer_scratch_bytes(&optimizer, &piece), 8 * 64);
    optimizer = make_optimizer(OPTIMIZER_MUON, MOMENT_F32);
    CHECK_INT(optimizer_state_bytes(&optimizer, &piece), 4 * values);
    CHECK_INT(optimizer_scratch_bytes(&optimizer, &piece), 8 * values + 8 * 64 * 64);
    CHECK_INT(optimizer_state_bytes(&optimizer, &small), 8 * values);
    CHECK_INT(optimizer_scratch_bytes(&optimizer, &small), 0);
}

int main(void) {
    TEST_RUN(names_and_sizes);
    TEST_RUN(products);
    TEST_RUN(same_bits_as_the_twin);
    TEST_RUN(tiles_make_the_same_step);
    TEST_RUN(without_momentum);
    TEST_RUN(f32_has_the_bits_of_optimizer_h);
    TEST_RUN(muon_flattens_singular_values);
    TEST_RUN(zero_gradients);
    TEST_RUN(v_freezes);
    TEST_RUN(bits_are_the_known_ones);
    return 0;
}
