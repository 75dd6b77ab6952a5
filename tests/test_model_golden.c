/* Proves that the model computes what PyTorch computes: loss, logits and every gradient of one
 * batch against values computed in float64, and two training curves of 50 AdamW steps (constant
 * rate; warm-up and cosine) of a plain one-process loop over the plan's blocks, with clipping. With
 * products in bfloat16 likewise, within what its 8 bits allow. The values are made by
 * tests/golden/make_gpt2.py; the model is in tests/golden_gpt2.h, its set-up in golden_setup.h.
 */
#include "tests/golden_setup.h"

static void open_gpt2(struct golden_setup *setup, enum compute_type type) {
    const struct model_shape shape = golden_shape();
    const struct model_options options = {
        .B = GOLDEN_B, .T = GOLDEN_T, .training = true, .type = type};
    golden_open(setup, &shape, &options);
}

static void check_loss_and_logits(enum compute_type type, double tolerance) {
    struct golden_setup setup;
    open_gpt2(&setup, type);
    CHECK_NEAR(golden_compute(&setup), GOLDEN_LOSS, tolerance * GOLDEN_LOSS);
    float logits[GOLDEN_VOCAB];
    model_logits(setup.model, setup.tokens, GOLDEN_T, logits);
    for (int v = 0; v < GOLDEN_VOCAB; v++)
        CHECK_NEAR(logits[v], golden_logits[v], tolerance);
    golden_close(&setup);
}

static void test_loss_and_logits(void) {
    check_loss_and_logits(COMPUTE_F32, 1e-5);
    check_loss_and_logits(COMPUTE_BF16, 2e-2);
}

static void check_type(enum compute_type type, double tolerance) {
    struct golden_setup setup;
    open_gpt2(&setup, type);
    golden_compute(&setup);
    golden_check_gradients(&setup, GOLDEN_GRADIENTS, tolerance);
    golden_close(&setup);
}

static void test_gradients(void) {
    check_type(COMPUTE_F32, 1e-4);
    check_type(COMPUTE_BF16, 2e-2);
}

static void test_curve_constant_rate(void) {
    const struct model_shape shape = golden_shape();
    golden_check_curve(&shape, golden_constant(), COMPUTE_F32, GOLDEN_STEPS, 1e-3);
    golden_check_curve(&shape, golden_constant(), COMPUTE_BF16, 10, 2e-2);
}

static void test_curve_cosine(void) {
    const struct model_shape shape = golden_shape();
    golden_check_curve(&shape, golden_cosine(), COMPUTE_F32, GOLDEN_STEPS, 1e-3);
    golden_check_curve(&shape, golden_cosine(), COMPUTE_BF16, 10, 2e-2);
}

int main(void) {
    TEST_RUN(test_loss_and_logits);
    TEST_RUN(test_gradients);
    TEST_RUN(test_curve_constant_rate);
    TEST_RUN(test_curve_cosine);
    return 0;
}
