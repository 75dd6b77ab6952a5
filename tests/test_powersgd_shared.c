/* test_powersgd_shared.c - powersgd with a factor that all workers share.
 *
 * Three workers and a server by hand, as worker and shard use the encoders: each worker encodes its
 * matrix, the server adds what the payloads decode to, encodes the mean, and each worker expands
 * what that decodes to. Proved against a plain double-precision form of the algorithm: the mean
 * gradient of each step; that all workers get the same bits; that what was sent plus what is held
 * back is the sum of the gradients; that a fixed mean of rank 2 is found; that a round may be left
 * out; that a payload which says more values than fit, or is cut, is refused.
 */
#include "base/memory.h"
#include "base/random.h"
#include "compression/decoder.h"
#include "compression/encoder.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

enum { W = 3, ROWS = 40, COLS = 28, COUNT = ROWS * COLS, RANK = 3, STEPS = 12 };

struct rig {
    struct encoder *workers[W], *server;
    void *scratch;
    uint8_t *wire;
    float sum[COUNT], mean[W][COUNT]; /* mean: the gradient as each worker has it */
    struct encoder_result results[W];
};

static struct encoder *open_one(const char *text, uint32_t lane, bool averages, uint64_t dense) {
    struct encoder_block block = {.id = 7, .rows = ROWS, .cols = COLS};
    struct encoder_config config = {.blocks = &block,
                                    .block_count = 1,
                                    .seed = 5,
                                    .lane = lane,
                                    .dense_steps = dense,
                                    .averages = averages};
    char why[128];
    CHECK(codec_parse(text, &config.spec, why, sizeof why));
    return encoder_open(&config);
}

static void rig_open(struct rig *rig, const char *text, uint64_t dense) {
    *rig = (struct rig){0};
    for (uint32_t r = 0; r < W; r++) {
        rig->workers[r] = open_one(text, r, false, dense);
    }
    rig->server = open_one("powersgd:3,shared", W, true, dense);
    rig->scratch = aligned_alloc(64, (encoder_scratch_bytes(rig->workers[0]) + 127) / 64 * 64);
    rig->wire = memory_zeroed(encoder_bound(rig->workers[0], 0), 1);
}

static void rig_close(struct rig *rig) {
    for (uint32_t r = 0; r < W; r++) {
        encoder_close(rig->workers[r]);
    }
    encoder_close(rig->server);
    free(rig->scratch);
    free(rig->wire);
}

static void push(struct rig *rig, uint32_t r, uint64_t step, const float *grad) {
    encoder_encode(rig->workers[r], 0, step, grad, 1.0F, rig->wire, rig->scratch, &rig->results[r]);
    CHECK(decoder_add(rig->results[r].codec, rig->wire, rig->results[r].bytes, rig->sum, COUNT,
                      NULL) == STATUS_OK);
}

/* The server's mean -> each worker's gradient. */
static void settle(struct rig *rig, uint64_t step) {
    struct encoder_result result;
    for (size_t i = 0; i < COUNT; i++) {
        rig->sum[i] /= W;
    }
    encoder_encode(rig->server, 0, step, rig->sum, 1.0F, rig->wire, rig->scratch, &result);
    for (uint32_t r = 0; r < W; r++) {
        CHECK(decoder_set(result.codec, rig->wire, result.bytes, rig->mean[r], COUNT, NULL) ==
              STATUS_OK);
        if (result.codec == CODEC_POWERSGD_SHARED) {
            encoder_expand(rig->workers[r], 0, rig->mean[r], rig->scratch);
        }
        CHECK(memcmp(rig->mean[r], rig->mean[0], sizeof rig->mean[0]) == 0);
    }
    memset(rig->sum, 0, sizeof rig->sum);
}

static void draw(struct random_stream *random, float *grad) {
    for (size_t i = 0; i < COUNT; i++) {
        grad[i] = random_normal(random);
    }
}

/* ---- the oracle ---- */

struct plain {
    double x[RANK][ROWS]; /* the shared factor, of rows or of columns */
    bool on_rows;
    double held[W][COUNT];
};

static void orthonormalize(struct plain *p, size_t n) {
    for (size_t i = 0; i < RANK; i++) {
        for (size_t j = 0; j <= i; j++) {
            double dot = 0;
            for (size_t k = 0; k < n; k++) {
                dot += p->x[i][k] * p->x[j][k];
            }
            for (size_t k = 0; k < n; k++) {
                p->x[i][k] = j < i ? p->x[i][k] - dot * p->x[j][k] : p->x[i][k] / sqrt(dot);
            }
        }
    }
}

static double value_of(const struct plain *p, const double *a, size_t i, size_t k) {
    double sum = 0;
    for (size_t m = 0; m < (p->on_rows ? ROWS : COLS); m++) {
        sum += p->x[i][m] * (p->on_rows ? a[m * COLS + k] : a[k * COLS + m]);
    }
    return sum;
}

static double product_of(const struct plain *p, double y[RANK][ROWS], size_t at) {
    size_t row = at / COLS, col = at % COLS;
    double sum = 0;
    for (size_t i = 0; i < RANK; i++) {
        sum += p->on_rows ? p->x[i][row] * y[i][col] : y[i][row] * p->x[i][col];
    }
    return sum;
}

static void plain_step(struct plain *p, float grads[W][COUNT], bool feedback, double *gradient) {
    static double mean[RANK][ROWS];
    static double y[RANK][ROWS];
    static double a[COUNT];
    size_t n = p->on_rows ? COLS : ROWS;
    orthonormalize(p, p->on_rows ? ROWS : COLS);
    memset(mean, 0, sizeof mean);
    for (size_t r = 0; r < W; r++) {
        for (size_t at = 0; at < COUNT; at++) {
            a[at] = (double)grads[r][at] + p->held[r][at];
        }
        for (size_t i = 0; i < RANK; i++) {
            for (size_t k = 0; k < n; k++) {
                y[i][k] = value_of(p, a, i, k);
                mean[i][k] += y[i][k] / W;
            }
        }
        for (size_t at = 0; at < COUNT && feedback; at++) {
            p->held[r][at] = a[at] - product_of(p, y, at);
        }
    }
    for (size_t at = 0; at < COUNT; at++) {
        gradient[at] = product_of(p, mean, at);
    }
    memcpy(p->x, mean, sizeof mean);
    p->on_rows = !p->on_rows;
}

/* As the codec starts: noise of the seed and the block. */
static void plain_start(struct plain *p) {
    *p = (struct plain){0};
    for (size_t i = 0; i < RANK; i++) {
        struct random_stream random;
        random_open(&random, 5, RANDOM_CODEC, 7 * CODEC_RANK_MAX + i);
        for (size_t k = 0; k < COLS; k++) {
            p->x[i][k] = (double)random_normal(&random);
        }
    }
}

static void steps_are_the_formula(const char *text, bool feedback) {
    static struct rig rig;
    static struct plain plain;
    static float grads[W][COUNT];
    static double wanted[COUNT];
    struct random_stream random;
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    rig_open(&rig, text, 0);
    plain_start(&plain);
    for (uint64_t step = 0; step < STEPS; step++) {
        double norm = 0;
        double off = 0;
        for (uint32_t r = 0; r < W; r++) {
            draw(&random, grads[r]);
            push(&rig, r, step, grads[r]);
            CHECK_INT(rig.results[r].codec, CODEC_POWERSGD_SHARED);
        }
        settle(&rig, step);
        plain_step(&plain, grads, feedback, wanted);
        for (size_t at = 0; at < COUNT; at++) {
            double difference = (double)rig.mean[0][at] - wanted[at];
            norm += wanted[at] * wanted[at];
            off += difference * difference;
        }
        /* Factors are rounded to bf16 twice, and errors of the shared one accumulate slowly. */
        CHECK(sqrt(off / norm) < 0.03);
    }
    rig_close(&rig);
}

static void follows_the_formula(void) {
    steps_are_the_formula("powersgd:3,shared", false);
    steps_are_the_formula("powersgd:3,shared,ef", true);
}

/* sum of (what the payload stands for) + residual = sum of gradients, for one worker whose pushes
 * are the mean: then the expanded mean is what its payload stands for. */
static void nothing_is_lost(void) {
    static double sent[COUNT];
    static double given[COUNT];
    static float grad[COUNT];
    struct rig rig;
    struct random_stream random;
    double held = 0;
    random_open(&random, 2, RANDOM_SIMULATOR, 0);
    rig_open(&rig, "powersgd:3,shared,ef", 0);
    memset(sent, 0, sizeof sent);
    memset(given, 0, sizeof given);
    for (uint64_t step = 0; step < STEPS; step++) {
        draw(&random, grad);
        for (uint32_t r = 0; r < W; r++) {
            push(&rig, r, step, grad);
        }
        settle(&rig, step);
        for (size_t at = 0; at < COUNT; at++) {
            sent[at] += (double)rig.mean[0][at];
            given[at] += (double)grad[at];
        }
    }
    for (size_t at = 0; at < COUNT; at++) {
        held += (given[at] - sent[at]) * (given[at] - sent[at]);
    }
    CHECK_NEAR(held / rig.results[0].residual_square_sum, 1.0, 0.02);
    rig_close(&rig);
}

/* The sum of a factor's squares is more than f32 holds, that of what its product leaves is not. */
static void holds_back_little_of_large_values(void) {
    static float grad[COUNT];
    struct rig rig;
    double squares = 0;
    rig_open(&rig, "powersgd:3,shared,ef", 0);
    for (size_t at = 0; at < COUNT; at++) {
        size_t row = at / COLS;
        size_t col = at % COLS;
        grad[at] = sinf((float)row) * cosf((float)col);
        squares += (double)grad[at] * (double)grad[at];
    }
    for (uint64_t step = 0; step < 2; step++) {
        for (uint32_t r = 0; r < W; r++) {
            push(&rig, r, step, grad);
        }
        settle(&rig, step);
        for (size_t at = 0; at < COUNT; at++) {
            grad[at] *= (float)sqrt(5e38 / squares);
        }
    }
    CHECK_NEAR(rig.results[0].square_sum, 5e38, 5e35);
    CHECK(rig.results[0].residual_square_sum < 5e34);
    rig_close(&rig);
}

/* Each worker's matrix is of full rank; their mean is not. */
static void finds_a_mean_of_low_rank(void) {
    static float grads[W][COUNT];
    static float mean[COUNT];
    struct rig rig;
    struct random_stream random;
    double off = 0;
    double norm = 0;
    random_open(&random, 3, RANDOM_SIMULATOR, 0);
    rig_open(&rig, "powersgd:3,shared", 2);
    draw(&random, grads[0]);
    for (size_t at = 0; at < COUNT; at++) {
        size_t row = at / COLS;
        size_t col = at % COLS;
        float low =
            sinf((float)row) * cosf((float)col) + cosf(2.0F * (float)row) * (float)col * 0.05F;
        mean[at] = low;
        grads[1][at] = low - 0.5F * grads[0][at];
        grads[2][at] = 3.0F * low - grads[1][at] - grads[0][at];
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint32_t r = 0; r < W; r++) {
            push(&rig, r, step, grads[r]);
            CHECK_INT(rig.results[r].codec, step < 2 ? CODEC_BF16 : CODEC_POWERSGD_SHARED);
        }
        settle(&rig, step);
    }
    for (size_t at = 0; at < COUNT; at++) {
        double difference = (double)(rig.mean[0][at] - mean[at]);
        off += difference * difference;
        norm += (double)mean[at] * (double)mean[at];
    }
    CHECK(sqrt(off / norm) < 0.02);
    rig_close(&rig);
}

/* A round whose gradients are not finite has no mean; the sides do not change. */
static void a_round_left_out_moves_nothing(void) {
    static float grad[COUNT];
    static float bad[COUNT];
    struct rig rig;
    struct random_stream random;
    random_open(&random, 4, RANDOM_SIMULATOR, 0);
    rig_open(&rig, "powersgd:3,shared,ef", 0);
    draw(&random, grad);
    memcpy(bad, grad, sizeof bad);
    bad[5] = INFINITY;
    for (uint64_t step = 0; step < STEPS; step++) {
        bool left_out = step % 4 == 2;
        for (uint32_t r = 0; r < W; r++) {
            encoder_encode(rig.workers[r], 0, step, left_out && r == 1 ? bad : grad, 1.0F, rig.wire,
                           rig.scratch, &rig.results[r]);
            CHECK(rig.results[r].codec ==
                  (left_out && r == 1 ? CODEC_FILL : CODEC_POWERSGD_SHARED));
            if (!left_out) {
                CHECK(decoder_add(rig.results[r].codec, rig.wire, rig.results[r].bytes, rig.sum,
                                  COUNT, NULL) == STATUS_OK);
            }
        }
        if (!left_out) {
            settle(&rig, step);
            for (size_t at = 0; at < COUNT; at++) {
                CHECK(isfinite(rig.mean[0][at]));
            }
        }
    }
    rig_close(&rig);
}

static void refuses_what_does_not_fit(void) {
    static float values[COUNT];
    static float grad[COUNT];
    struct rig rig;
    struct random_stream random;
    random_open(&random, 6, RANDOM_SIMULATOR, 0);
    rig_open(&rig, "powersgd:3,shared", 0);
    draw(&random, grad);
    push(&rig, 0, 0, grad);
    size_t bytes = rig.results[0].bytes;
    CHECK_INT(bytes, 4 + 2 * RANK * ROWS);
    for (size_t cut = 0; cut < bytes; cut++) {
        CHECK(decoder_set(CODEC_POWERSGD_SHARED, rig.wire, cut, values, COUNT, NULL) ==
              STATUS_CORRUPT);
    }
    CHECK(decoder_set(CODEC_POWERSGD_SHARED, rig.wire, bytes, values, RANK * ROWS - 1, NULL) ==
          STATUS_CORRUPT);
    rig_close(&rig);
}

int main(void) {
    TEST_RUN(follows_the_formula);
    TEST_RUN(nothing_is_lost);
    TEST_RUN(holds_back_little_of_large_values);
    TEST_RUN(finds_a_mean_of_low_rank);
    TEST_RUN(a_round_left_out_moves_nothing);
    TEST_RUN(refuses_what_does_not_fit);
    return 0;
}
