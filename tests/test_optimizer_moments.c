/* test_optimizer_moments.c - proves that moments in bf16 and int8 are what optimizer_state.h says,
 * and that training with them is training.
 *
 * Each stored value is one of the two neighbours that its format has, zero stays zero, and what is
 * not zero in v stays so. The mean over many seeds is the value itself, and a v without gradients
 * falls by its closed form 0.999^t, which rounding to the nearest cannot do. A noisy quadratic with
 * curvatures from 0.1 to 10 side by side in each block ends, after 200 steps of each optimizer,
 * within a stated distance of where it ends with moments in f32.
 */
#include "base/memory.h"
#include "base/random.h"
#include "kernels/optimizer_moment.h"
#include "kernels/optimizer_state.h"
#include "tests/test.h"

enum { COUNT = 2000 };

static struct moment moment_open(enum moment_type type, enum moment_role role, int64_t count) {
    return (struct moment){type, role, count,
                           memory_zeroed(optimizer_moment_bytes(type, count), 1)};
}

/* Magnitudes over `octaves` octaves, some zeros; signs if the role has them. */
static void spread(float *values, enum moment_role role, double octaves) {
    struct random_stream stream;
    random_open(&stream, 7, RANDOM_SIMULATOR, 1);
    for (int i = 0; i < COUNT; i++) {
        double magnitude = exp2(-octaves * (double)random_unit(&stream));
        bool minus = role == MOMENT_SIGNED && random_below(&stream, 2) == 1;
        values[i] = (float)(minus ? -magnitude : magnitude);
        if (random_below(&stream, 10) == 0) values[i] = minus ? -0.0F : 0.0F;
    }
}

/* `relative`: the distance of neighbours. `floor`: the least magnitude to a block's largest one. */
static void check_round_trip(enum moment_type type, enum moment_role role, double octaves,
                             double relative, double floor) {
    static float values[COUNT], back[COUNT], again[COUNT];
    struct moment moment = moment_open(type, role, COUNT);
    spread(values, role, octaves);
    optimizer_moment_load(&moment, 0, COUNT, back);
    for (int i = 0; i < COUNT; i++)
        CHECK(back[i] == 0.0F);
    optimizer_moment_store(&moment, 0, COUNT, values, 1);
    optimizer_moment_load(&moment, 0, COUNT, back);
    for (int i = 0; i < COUNT; i++) {
        double value = (double)values[i], error = fabs((double)back[i] - value);
        double largest = 0.0;
        for (int j = i / MOMENT_BLOCK * MOMENT_BLOCK; j / MOMENT_BLOCK == i / MOMENT_BLOCK; j++)
            if (j < COUNT) largest = fmax(largest, fabs((double)values[j]));
        if (fabs(value) >= floor * largest)
            CHECK(error < relative * fabs(value) || error == 0.0);
        else
            CHECK(fabs((double)back[i]) <= floor * largest * (1.0 + relative));
        CHECK(value != 0.0 || back[i] == 0.0F);
        if (role == MOMENT_SQUARE && value != 0.0) CHECK(back[i] > 0.0F);
        if (back[i] != 0.0F) CHECK(signbit(back[i]) == signbit(values[i]));
    }
    /* What the format has goes through unchanged, with any seed, but at the end of the window,
     * which moves when the largest has been rounded up. */
    optimizer_moment_store(&moment, 0, COUNT, back, 12345);
    optimizer_moment_load(&moment, 0, COUNT, again);
    for (int i = 0; i < COUNT; i++)
        CHECK(again[i] == back[i] || fabs((double)back[i]) <= 1.2 * floor);
    free(moment.data);
}

static void round_trips(void) {
    for (int role = MOMENT_SIGNED; role <= MOMENT_SQUARE; role++)
        check_round_trip(MOMENT_BF16, (enum moment_role)role, 100.0, 0x1p-7, 0.0);
    check_round_trip(MOMENT_INT8, MOMENT_SIGNED, 15.0, 0x1p-3, 0x1p-15);
    check_round_trip(MOMENT_INT8, MOMENT_SIGNED, 40.0, 0x1p-3, 0x1p-15);
    check_round_trip(MOMENT_INT8, MOMENT_SQUARE, 31.0, 0x1p-3, 0x1p-31);
    check_round_trip(MOMENT_INT8, MOMENT_SQUARE, 60.0, 0x1p-3, 0x1p-31);
}

static void not_finite_stays_so(void) {
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int type = MOMENT_F32; type <= MOMENT_INT8; type++) {
        for (int i = 0; i < 4; i++) {
            float values[300] = {0}, back[300];
            values[7] = bad[i];
            values[290] = 1.0F;
            struct moment moment = moment_open((enum moment_type)type, MOMENT_SIGNED, 300);
            optimizer_moment_store(&moment, 0, 300, values, 3);
            optimizer_moment_load(&moment, 0, 300, back);
            CHECK(!isfinite(back[7]));
            CHECK(back[8] == 0.0F && back[290] == 1.0F);
            free(moment.data);
        }
    }
}

/* The mean of n roundings is off by 5 standard deviations of at most a step / 2 / sqrt(n). */
static void right_in_the_mean(void) {
    enum { ROUNDS = 4000 };
    static const float some[] = {1.0F, 0.9F, 0.51F, 0.3333F, 0.1001F, 0.06251F, 0.99999F};
    for (int i = 0; i < 4; i++) {
        const enum moment_type type = i < 2 ? MOMENT_BF16 : MOMENT_INT8;
        const double step = type == MOMENT_BF16 ? 0x1p-7 : 0x1p-3;
        struct moment moment = moment_open(type, (enum moment_role)(i % 2), 7);
        double sums[7] = {0};
        for (int round = 0; round < ROUNDS; round++) {
            float back[7];
            optimizer_moment_store(&moment, 0, 7, some, optimizer_moment_seed(round + 1));
            optimizer_moment_load(&moment, 0, 7, back);
            for (int j = 0; j < 7; j++)
                sums[j] += (double)back[j];
        }
        for (int j = 0; j < 7; j++)
            CHECK_NEAR(sums[j] / ROUNDS, some[j], 5.0 * step / 2.0 / sqrt(ROUNDS) * some[j]);
        free(moment.data);
    }
}

static void v_falls_without_gradients(void) {
    enum { VALUES = 4096, STEPS = 700 };
    static float weights[VALUES], grad[VALUES], v[VALUES];
    const struct optimizer_piece piece = {1, VALUES, false};
    for (int type = MOMENT_F32; type <= MOMENT_INT8; type++) {
        const struct optimizer optimizer = {
            OPTIMIZER_ADAMW, (enum moment_type)type, 0.9F, 0.999F, 1e-8F, 0.0F, 0};
        uint8_t *state = memory_zeroed(optimizer_state_bytes(&optimizer, &piece), 1);
        for (int64_t step = 1; step <= STEPS + 1; step++) {
            const struct optimizer_update update = {1e-4F, 0.0F, 1.0F, step};
            for (int i = 0; i < VALUES; i++)
                grad[i] = step == 1 ? 1.0F : 0.0F;
            optimizer_step(&optimizer, &update, &piece, weights, state, grad, NULL);
        }
        const struct moment moment = {(enum moment_type)type, MOMENT_SQUARE, VALUES,
                                      state +
                                          optimizer_moment_bytes((enum moment_type)type, VALUES)};
        optimizer_moment_load(&moment, 0, VALUES, v);
        double mean = 0.0;
        for (int i = 0; i < VALUES; i++)
            mean += (double)v[i] / VALUES;
        CHECK_NEAR(mean / (1e-3 * pow(0.999, STEPS)), 1.0, type == MOMENT_F32 ? 1e-4 : 0.02);
        free(state);
    }
}

/* Loss after 200 steps. The rate falls to 0, so that the noise does not hide where it ends. */
static double train(const struct optimizer *optimizer, float lr) {
    enum { ROWS = 32, COLS = 64, VALUES = ROWS * COLS, STEPS = 200 };
    static float weights[VALUES], grad[VALUES], goal[VALUES], curve[VALUES];
    const struct optimizer_piece piece = {ROWS, COLS, true};
    struct random_stream stream;
    random_open(&stream, 8, RANDOM_SIMULATOR, 1);
    for (int i = 0; i < VALUES; i++) {
        weights[i] = 0.5F * random_normal(&stream);
        goal[i] = random_normal(&stream);
        curve[i] = (float)exp2(6.6 * (double)random_unit(&stream) - 3.3);
    }
    uint8_t *state = memory_zeroed(optimizer_state_bytes(optimizer, &piece) + 64, 1);
    uint8_t *scratch = memory_zeroed(optimizer_scratch_bytes(optimizer, &piece) + 64, 1);
    for (int64_t step = 1; step <= STEPS; step++) {
        const float left = 1.0F - (float)(step - 1) / STEPS;
        const struct optimizer_update update = {lr * left, 0.0F, 1.0F, step};
        for (int i = 0; i < VALUES; i++)
            grad[i] = curve[i] * (weights[i] - goal[i] + 0.3F * random_normal(&stream));
        optimizer_step(optimizer, &update, &piece, weights, state, grad, scratch);
    }
    free(state);
    free(scratch);
    double loss = 0.0;
    for (int i = 0; i < VALUES; i++)
        loss += 0.5 * (double)curve[i] * pow((double)(weights[i] - goal[i]), 2) / VALUES;
    return loss;
}

static void training(void) {
    static const struct {
        enum optimizer_kind kind;
        float lr, beta2;
    } runs[] = {{OPTIMIZER_SGD, 0.01F, 0.0F},      {OPTIMIZER_NESTEROV, 0.01F, 0.0F},
                {OPTIMIZER_ADAGRAD, 0.3F, 0.0F},   {OPTIMIZER_ADAMW, 0.03F, 0.999F},
                {OPTIMIZER_ADAMW, 0.03F, 0.95F},   {OPTIMIZER_LION, 0.02F, 0.99F},
                {OPTIMIZER_LAMB, 0.1F, 0.999F},    {OPTIMIZER_MUON, 0.05F, 0.99F},
                {OPTIMIZER_ADAFACTOR, 0.03F, 0.0F}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct optimizer optimizer = {runs[i].kind, MOMENT_F32, 0.9F, runs[i].beta2,
                                      1e-8F,        0.9F,       0};
        double full = train(&optimizer, runs[i].lr);
        optimizer.moments = MOMENT_BF16;
        double half = train(&optimizer, runs[i].lr);
        optimizer.moments = MOMENT_INT8;
        double quarter = train(&optimizer, runs[i].lr);
        printf("  optimizer %d: f32 %.5f bf16 %.5f int8 %.5f\n", (int)runs[i].kind, full, half,
               quarter);
        CHECK(full < 0.3); /* it starts above 1 */
        CHECK_NEAR(half / full, 1.0, 0.02);
        CHECK_NEAR(quarter / full, 1.0, 0.1);
    }
}

int main(void) {
    TEST_RUN(round_trips);
    TEST_RUN(not_finite_stays_so);
    TEST_RUN(right_in_the_mean);
    TEST_RUN(v_falls_without_gradients);
    TEST_RUN(training);
    return 0;
}
