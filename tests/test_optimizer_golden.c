/* test_optimizer_golden.c - proves that each optimizer takes the steps that PyTorch takes, or where
 * PyTorch has none (Lion, LAMB, Muon) those of the paper's formulas in float64.
 *
 * The weights after ten steps with weight decay and a scaled gradient, from both the fast kernels
 * and their twin, against tests/golden/make_optimizer.py. The tolerance is what f32 costs: a few
 * parts in 10^7 of weights that are below 2, and 100 times that for Muon, whose five steps enlarge
 * what is small by 3.4445^5.
 */
#include "tests/golden/optimizer_values.h"
#include "tests/test.h"

enum { COUNT = GOLDEN_OPTIMIZER_COUNT };

typedef void step_fn(const struct optimizer *optimizer, const struct optimizer_update *update,
                     const struct optimizer_piece *piece, float *weights, void *state,
                     const float *grad, void *scratch);

/* As unit() in the script. */
static float unit(uint32_t x) {
    x = (x ^ x >> 16) * UINT32_C(0x85ebca6b);
    x = (x ^ x >> 13) * UINT32_C(0xc2b2ae35);
    x = x ^ x >> 16;
    return (float)(x >> 8) / 16777216.0F - 0.5F;
}

static void make_grad(int64_t step, int64_t cols, float *grad) {
    for (int64_t i = 0; i < COUNT; i++) {
        int power = (int)(i % cols % 3 - i / cols % 4);
        grad[i] = ldexpf(unit((uint32_t)(step << 16) + (uint32_t)i), power);
    }
}

static void check_case(const struct golden_optimizer *golden, step_fn *step_of) {
    static _Alignas(64) uint8_t state[1024], scratch[4096];
    float weights[COUNT], grad[COUNT];
    const double tolerance = golden->optimizer.kind == OPTIMIZER_MUON ? 2e-5 : 1e-6;
    CHECK(optimizer_state_bytes(&golden->optimizer, &golden->piece) <= sizeof state);
    CHECK(optimizer_scratch_bytes(&golden->optimizer, &golden->piece) <= sizeof scratch);
    CHECK_INT(golden->piece.rows * golden->piece.cols, COUNT);
    memset(state, 0, sizeof state);
    memset(scratch, 0xff, sizeof scratch); /* NaN: nobody may read what nobody wrote */
    for (uint32_t i = 0; i < COUNT; i++)
        weights[i] = unit(i);
    for (int64_t step = 1; step <= GOLDEN_OPTIMIZER_STEPS; step++) {
        const struct optimizer_update update = {golden->lr, golden->decay,
                                                GOLDEN_OPTIMIZER_GRAD_SCALE, step};
        make_grad(step, golden->piece.cols, grad);
        step_of(&golden->optimizer, &update, &golden->piece, weights, state, grad, scratch);
    }
    for (int i = 0; i < COUNT; i++)
        CHECK_NEAR(weights[i], golden->weights[i], tolerance);
}

int main(void) {
    for (size_t i = 0; i < sizeof golden_optimizers / sizeof golden_optimizers[0]; i++) {
        printf("%s\n", golden_optimizers[i].name);
        fflush(stdout);
        check_case(&golden_optimizers[i], optimizer_step);
        check_case(&golden_optimizers[i], optimizer_step_ref);
    }
    return 0;
}
