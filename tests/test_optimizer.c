/* test_optimizer.c - proves that an optimizer step has the same bits from the fast kernel, its
 * plain twin, and every build and chip; and that the bits are those of AdamW and SGD.
 *
 * Same bits: fast against twin on random, subnormal, zero and infinite values of many lengths; and
 * the checksum of a run of steps is compared with a constant, which the sanitizer builds (without
 * clones, unoptimised) and every CI machine must meet. Right values: three steps by hand in double,
 * with the formulas in another form (bias-corrected moments).
 */
#include "base/checksum.h"
#include "base/random.h"
#include "kernels/optimizer.h"
#include "tests/test.h"

enum { COUNT = 1003, KINDS = 4 };

/* kind 0: ordinary, 1: tiny down to subnormals, 2: huge, 3: the awkward ones. Bits are a function
 * of the arguments alone: no libm. */
static void fill(float *values, int64_t count, int kind, uint64_t lane) {
    static const float awkward[] = {0.0F,    -0.0F,    1e-45F,   -1e-45F,   1.17549435e-38F,
                                    3.4e38F, -3.4e38F, INFINITY, -INFINITY, 1.0F,
                                    -1.0F,   1e-20F};
    struct random_stream stream;
    random_open(&stream, 5, RANDOM_SIMULATOR, lane);
    for (int64_t i = 0; i < count; i++) {
        float uniform = random_unit(&stream) * 2.0F - 1.0F;
        uint64_t pick = random_below(&stream, sizeof awkward / sizeof awkward[0]);
        if (kind == 0) values[i] = uniform;
        if (kind == 1) values[i] = uniform * 1e-38F;
        if (kind == 2) values[i] = uniform * 1e38F;
        if (kind == 3) values[i] = awkward[pick];
    }
}

static void make_positive(float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = fabsf(values[i]);
}

/* Equal bits, or a NaN each. */
static void check_same(const float *actual, const float *expected, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t a, e;
        memcpy(&a, &actual[i], sizeof a);
        memcpy(&e, &expected[i], sizeof e);
        if (!(isnan(actual[i]) && isnan(expected[i]))) CHECK_INT(a, e);
    }
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct state {
    float weights[COUNT], first[COUNT], second[COUNT], grad[COUNT];
};

static void fill_state(struct state *state, int kind) {
    fill(state->weights, COUNT, kind, 1);
    fill(state->first, COUNT, kind, 2);
    fill(state->second, COUNT, kind, 3);
    make_positive(state->second, COUNT);
    fill(state->grad, COUNT, kind, 4);
}

static void check_same_state(const struct state *actual, const struct state *expected) {
    check_same(actual->weights, expected->weights, COUNT);
    check_same(actual->first, expected->first, COUNT);
    check_same(actual->second, expected->second, COUNT);
    check_same(actual->grad, expected->grad, COUNT);
}

static void adamw_same_bits(void) {
    static struct state fast, plain;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int64_t N = 0; N <= COUNT; N = N < 40 ? N + 1 : N + 321) {
            fill_state(&fast, kind);
            fill_state(&plain, kind);
            for (int64_t step = 1; step <= 3; step++) {
                struct adamw adamw = {3e-4F, 0.9F, 0.95F, 1e-8F, 0.1F, step, 0.3F};
                optimizer_adamw(&adamw, fast.weights, fast.first, fast.second, fast.grad, N);
                optimizer_adamw_ref(&adamw, plain.weights, plain.first, plain.second, plain.grad,
                                    N);
            }
            check_same_state(&fast, &plain);
        }
    }
}

static void sgd_same_bits(void) {
    static struct state fast, plain;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int64_t N = 0; N <= COUNT; N = N < 40 ? N + 1 : N + 321) {
            fill_state(&fast, kind);
            fill_state(&plain, kind);
            for (int64_t step = 1; step <= 3; step++) {
                struct sgd sgd = {0.1F, 0.9F, 0.01F, 0.3F, step};
                optimizer_sgd(&sgd, fast.weights, fast.first, fast.grad, N);
                optimizer_sgd_ref(&sgd, plain.weights, plain.first, plain.grad, N);
            }
            check_same_state(&fast, &plain);
        }
    }
}

static void sum_of_squares_same_bits(void) {
    static float grad[COUNT];
    for (int kind = 0; kind < KINDS; kind++) {
        fill(grad, COUNT, kind, 9);
        for (int64_t N = 0; N <= COUNT; N++) {
            double fast = optimizer_sum_of_squares(grad, N);
            double plain = optimizer_sum_of_squares_ref(grad, N);
            CHECK_INT(bits_of(fast), bits_of(plain));
        }
    }
}

static void sum_of_squares_values(void) {
    float grad[40];
    for (int i = 0; i < 40; i++)
        grad[i] = (float)(i + 1);
    CHECK(optimizer_sum_of_squares(grad, 40) == 40.0 * 41.0 * 81.0 / 6.0);
    CHECK(optimizer_sum_of_squares(grad, 0) == 0.0);
    /* Beyond the range of f32, yet right. */
    grad[3] = 3e38F;
    CHECK_NEAR(optimizer_sum_of_squares(grad, 40) / 9e76, 1.0, 1e-6);
    /* One bad value anywhere shows. */
    for (int i = 0; i < 40; i++) {
        float kept = grad[i];
        grad[i] = NAN;
        CHECK(!isfinite(optimizer_sum_of_squares(grad, 40)));
        grad[i] = -INFINITY;
        CHECK(!isfinite(optimizer_sum_of_squares(grad, 40)));
        grad[i] = kept;
    }
}

/* Four weights, three steps, against AdamW with explicit bias-corrected moments in double. */
static void adamw_by_hand(void) {
    const double lr = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.1, scale = 0.5;
    float weights[4] = {1.0F, -2.0F, 0.5F, 0.0F}, m[4] = {0}, v[4] = {0};
    double w[4] = {1.0, -2.0, 0.5, 0.0}, hand_m[4] = {0}, hand_v[4] = {0};
    for (int step = 1; step <= 3; step++) {
        float grad[4] = {0.3F * (float)step, -1.0F, 2.0F - (float)step, 0.001F};
        struct adamw adamw = {(float)lr,    (float)beta1, (float)beta2, (float)eps,
                              (float)decay, step,         (float)scale};
        optimizer_adamw(&adamw, weights, m, v, grad, 4);
        for (int i = 0; i < 4; i++) {
            double g = scale * (double)grad[i];
            hand_m[i] = beta1 * hand_m[i] + (1.0 - beta1) * g;
            hand_v[i] = beta2 * hand_v[i] + (1.0 - beta2) * g * g;
            double m_hat = hand_m[i] / (1.0 - pow(beta1, step));
            double v_hat = hand_v[i] / (1.0 - pow(beta2, step));
            w[i] -= lr * decay * w[i];
            w[i] -= lr * m_hat / (sqrt(v_hat) + eps);
            CHECK_NEAR(weights[i], w[i], 1e-6);
            CHECK_NEAR(m[i], hand_m[i], 1e-7);
            CHECK_NEAR(v[i] / (1e-12F + v[i]), hand_v[i] / (1e-12 + hand_v[i]), 1e-4);
        }
        /* The first step moves each weight by lr against the gradient's sign, whatever its size. */
        if (step == 1) CHECK_NEAR(weights[3], -lr, 1e-6);
    }
    /* Late steps: the corrections are gone. */
    float late = 1.0F, late_m = 0.0F, late_v = 1.0F, late_grad = 0.0F;
    struct adamw adamw = {0.5F, 0.9F, 0.999F, 1e-8F, 0.0F, INT64_C(1) << 40, 1.0F};
    late_m = 1.0F;
    optimizer_adamw(&adamw, &late, &late_m, &late_v, &late_grad, 1);
    CHECK_NEAR(late, 1.0 - 0.5 * 0.9 / sqrt(0.999), 1e-6);
}

static void sgd_by_hand(void) {
    const double lr = 0.1, momentum = 0.9, decay = 0.01, scale = 0.25;
    float weights[2] = {1.0F, -3.0F};
    float velocity[2] = {NAN, 1e30F}; /* not to be read at step 1 */
    double w[2] = {1.0, -3.0}, hand[2] = {0};
    for (int step = 1; step <= 3; step++) {
        float grad[2] = {4.0F * (float)step, -8.0F};
        struct sgd sgd = {(float)lr, (float)momentum, (float)decay, (float)scale, step};
        optimizer_sgd(&sgd, weights, velocity, grad, 2);
        for (int i = 0; i < 2; i++) {
            double g = scale * (double)grad[i] + decay * w[i];
            hand[i] = step == 1 ? g : momentum * hand[i] + g;
            w[i] -= lr * hand[i];
            CHECK_NEAR(weights[i], w[i], 1e-6);
            CHECK_NEAR(velocity[i], hand[i], 1e-6);
        }
    }
}

/* The checksum was made by the plain twin; see the head of this file. */
static void bits_are_the_known_ones(void) {
    static struct state state;
    for (int fast = 0; fast < 2; fast++) {
        fill_state(&state, 0);
        for (int64_t step = 1; step <= 20; step++) {
            fill(state.grad, COUNT, 0, 100 + (uint64_t)step);
            struct adamw adamw = {1e-3F, 0.9F, 0.999F, 1e-8F, 0.1F, step, 0.125F};
            (fast ? optimizer_adamw : optimizer_adamw_ref)(&adamw, state.weights, state.first,
                                                           state.second, state.grad, COUNT);
            struct sgd sgd = {1e-3F, 0.9F, 0.1F, 0.125F, step};
            (fast ? optimizer_sgd : optimizer_sgd_ref)(&sgd, state.weights, state.grad, state.first,
                                                       COUNT);
        }
        CHECK_INT(checksum_crc32c(&state, sizeof state), 2686232217);
    }
}

int main(void) {
    TEST_RUN(adamw_same_bits);
    TEST_RUN(sgd_same_bits);
    TEST_RUN(sum_of_squares_same_bits);
    TEST_RUN(sum_of_squares_values);
    TEST_RUN(adamw_by_hand);
    TEST_RUN(sgd_by_hand);
    TEST_RUN(bits_are_the_known_ones);
    return 0;
}
