/* test_optimizer_delay.c - proves what delay compensation does to a gradient.
 *
 * The loss -log(w) has the second derivative g^2 exactly, so there the compensated gradient is the
 * true one but for the third derivative's share. AdamW's c and Lion's direction by hand in double.
 * The estimate without a base must be the one with the weights of a step ago, where an optimizer's
 * step is its direction (sgd, adamw, lamb). All against the twin in test_optimizer_state.c.
 */
#include "base/memory.h"
#include "base/random.h"
#include "kernels/optimizer_state.h"
#include "tests/test.h"

enum { ROWS = 20, COLS = 60, COUNT = ROWS * COLS };

static const struct optimizer_piece piece = {ROWS, COLS, true};

struct run {
    struct optimizer optimizer;
    float weights[COUNT], base[COUNT], grad[COUNT];
    uint8_t *state, *scratch;
};

/* Some steps; base is what the weights were before the last one. */
static void run_open(struct run *run, enum optimizer_kind kind, int64_t steps, float lr) {
    struct random_stream stream;
    random_open(&stream, 9, RANDOM_SIMULATOR, 1);
    run->optimizer = (struct optimizer){kind, MOMENT_F32, 0.9F, 0.95F, 1e-8F, 0.9F, 0};
    run->state = memory_zeroed(optimizer_state_bytes(&run->optimizer, &piece) + 64, 1);
    run->scratch = memory_zeroed(optimizer_scratch_bytes(&run->optimizer, &piece) + 64, 1);
    for (int i = 0; i < COUNT; i++)
        run->weights[i] = random_normal(&stream) * 0.1F;
    for (int64_t step = 1; step <= steps; step++) {
        const struct optimizer_update update = {lr, 0.0F, 0.5F, step};
        for (int i = 0; i < COUNT; i++)
            run->grad[i] = random_normal(&stream);
        memcpy(run->base, run->weights, sizeof run->base);
        optimizer_step(&run->optimizer, &update, &piece, run->weights, run->state, run->grad,
                       run->scratch);
    }
    for (int i = 0; i < COUNT; i++)
        run->grad[i] = random_normal(&stream);
}

static void run_close(struct run *run) {
    free(run->state);
    free(run->scratch);
}

static void second_derivative(void) {
    const struct optimizer optimizer = {OPTIMIZER_SGD, MOMENT_F32, 0.0F, 0.0F, 0.0F, 0.0F, 0};
    const struct optimizer_piece four = {1, 4, false};
    const struct optimizer_update update = {0.1F, 0.0F, 1.0F, 7};
    const float base[4] = {1.0F, 2.0F, 0.5F, 3.0F}, weights[4] = {1.1F, 1.9F, 0.5F, 3.2F};
    float grad[4];
    for (int i = 0; i < 4; i++)
        grad[i] = -1.0F / base[i];
    optimizer_delay_compensate(&optimizer, &update, &four, weights, NULL, base, 1.0F, 1, grad,
                               NULL);
    for (int i = 0; i < 4; i++) {
        double w = (double)weights[i], b = (double)base[i];
        double least = fmin(w, b), rest = (w - b) * (w - b) / (least * least * least);
        CHECK_NEAR(grad[i], -1.0 / w, rest + 1e-6);
        if (w != b) CHECK(fabs((double)grad[i] + 1.0 / w) < 0.2 * fabs(1.0 / w - 1.0 / b));
    }
}

static void adamw_by_hand(void) {
    static struct run run;
    static float before[COUNT];
    const int64_t steps = 4;
    run_open(&run, OPTIMIZER_ADAMW, steps, 1e-2F);
    memcpy(before, run.grad, sizeof before);
    const struct optimizer_update update = {1e-2F, 0.0F, 0.5F, steps + 1};
    optimizer_delay_compensate(&run.optimizer, &update, &piece, run.weights, run.state, run.base,
                               0.3F, 1, run.grad, run.scratch);
    const float *v = (const float *)(const void *)run.state + (COUNT + 15) / 16 * 16;
    for (int i = 0; i < COUNT; i++) {
        double v_hat = (double)v[i] / (1.0 - pow((double)0.95F, (double)steps));
        double g = (double)before[i], shift = (double)run.weights[i] - (double)run.base[i];
        double expected = g + 0.3 * 0.5 * g * g * shift / (sqrt(v_hat) + 1e-8);
        CHECK_NEAR(run.grad[i], expected, 1e-5 * (1.0 + fabs(expected)));
    }
    run_close(&run);
}

static void lion_by_hand(void) {
    static struct run run;
    static float before[COUNT];
    run_open(&run, OPTIMIZER_LION, 4, 1e-2F);
    memcpy(before, run.grad, sizeof before);
    const struct optimizer_update update = {1e-2F, 0.0F, 0.5F, 5};
    optimizer_delay_compensate(&run.optimizer, &update, &piece, run.weights, run.state, NULL, 0.3F,
                               6, run.grad, run.scratch);
    const float *m = (const float *)(const void *)run.state;
    for (int i = 0; i < COUNT; i++) {
        double g = (double)before[i], shift = m[i] > 0.0F ? -0.06 : 0.06;
        CHECK_NEAR(run.grad[i], g + 0.3 * 0.5 * g * g * shift, 1e-6 * (1.0 + g * g));
    }
    run_close(&run);
}

/* With staleness 1 the estimate is the base; and it grows with the staleness. */
static void estimate_is_the_base(void) {
    static const enum optimizer_kind kinds[] = {OPTIMIZER_SGD, OPTIMIZER_ADAMW, OPTIMIZER_LAMB};
    static struct run run;
    static float before[COUNT], measured[COUNT], thrice[COUNT];
    for (int k = 0; k < 3; k++) {
        run_open(&run, kinds[k], 5, 1e-2F);
        const struct optimizer_update update = {1e-2F, 0.0F, 0.5F, 6};
        memcpy(before, run.grad, sizeof before);
        memcpy(measured, run.grad, sizeof before);
        memcpy(thrice, run.grad, sizeof before);
        optimizer_delay_compensate(&run.optimizer, &update, &piece, run.weights, run.state,
                                   run.base, 5.0F, 1, measured, run.scratch);
        optimizer_delay_compensate(&run.optimizer, &update, &piece, run.weights, run.state, NULL,
                                   5.0F, 1, run.grad, run.scratch);
        optimizer_delay_compensate(&run.optimizer, &update, &piece, run.weights, run.state, NULL,
                                   5.0F, 3, thrice, run.scratch);
        double moved = 0.0;
        for (int i = 0; i < COUNT; i++) {
            double change = (double)run.grad[i] - (double)before[i];
            /* LAMB's ratio is of the weights after its step, not before: 1 in 100. */
            double slack = kinds[k] == OPTIMIZER_LAMB ? 0.03 : 1e-4;
            CHECK_NEAR(run.grad[i], measured[i], slack * fabs(change) + 2e-5);
            CHECK_NEAR((double)thrice[i] - (double)before[i], 3.0 * change,
                       1e-4 * fabs(change) + 2e-6);
            moved += fabs(change) / COUNT;
        }
        CHECK(moved > 1e-3);
        run_close(&run);
    }
}

static void unchanged(struct run *run, int64_t step, const float *base, uint32_t staleness) {
    static float before[COUNT];
    const struct optimizer_update update = {1e-2F, 0.0F, 0.5F, step};
    memcpy(before, run->grad, sizeof before);
    optimizer_delay_compensate(&run->optimizer, &update, &piece, run->weights, run->state, base,
                               5.0F, staleness, run->grad, run->scratch);
    CHECK(memcmp(before, run->grad, sizeof before) == 0);
}

static void where_nothing_is_known(void) {
    static struct run run;
    for (int kind = OPTIMIZER_SGD; kind <= OPTIMIZER_MUON; kind++) {
        run_open(&run, (enum optimizer_kind)kind, 2, 1e-2F);
        bool none = kind == OPTIMIZER_ADAGRAD || kind == OPTIMIZER_ADAFACTOR;
        unchanged(&run, 1, run.base, 1);
        unchanged(&run, 3, run.weights, 1); /* not stale at all */
        unchanged(&run, 3, NULL, none ? 1 : 0);
        run_close(&run);
    }
    run_open(&run, OPTIMIZER_SGD, 2, 1e-2F);
    run.optimizer.momentum = 0.0F;
    unchanged(&run, 3, NULL, 1);
    run_close(&run);
}

int main(void) {
    TEST_RUN(second_derivative);
    TEST_RUN(adamw_by_hand);
    TEST_RUN(lion_by_hand);
    TEST_RUN(estimate_is_the_base);
    TEST_RUN(where_nothing_is_known);
    return 0;
}
