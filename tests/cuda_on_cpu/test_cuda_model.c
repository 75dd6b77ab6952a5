/* Proves that the model computes on a CUDA device what it computes on the host: loss and gradient
 * of a step of two accumulated batches, for each case of model_rig.c (both families, heads tied and
 * not, f32 and bf16, dropout, recomputation, odd sizes), step after step with weights that change;
 * the same bits each time; weights that come at the gate, or between two batches; and a model that
 * does not fit.
 */
#include "kernels/device.h"
#include "tests/model_rig.h"
#include "tests/test.h"

static struct device *device; /* opened in main */

/* The distance of two vectors over the length of one. A sum that is no number is far. */
static double distance(const float *values, const float *expected, uint64_t count) {
    double difference = 0, length = 0;
    for (uint64_t i = 0; i < count; i++) {
        double d = (double)values[i] - (double)expected[i];
        difference += d * d;
        length += (double)expected[i] * (double)expected[i];
    }
    return length > 0 ? sqrt(difference / length) : sqrt(difference);
}

/* f32: the order of sums differs. bf16: where that moves a value over the middle between two of
 * bfloat16's, it is rounded the other way, by up to 2^-8 of itself. */
static double tolerance_of(const struct model_rig_case *rig_case) {
    return rig_case->options.type == COMPUTE_BF16 ? 0.01 : 1e-5;
}

/* As a whole, and each tensor, of which a few values may have met more roundings. */
static void check_gradient(const struct model_rig *rig, const struct model_rig *host,
                           double tolerance) {
    double whole = distance(rig->grad, host->grad, rig->plan.value_count);
    CHECK_NEAR(whole, 0, tolerance);
    for (uint64_t tensor = 0; tensor < rig->plan.tensor_count; tensor++) {
        uint64_t at = rig->plan.offsets[tensor], count = model_rig_count(rig, tensor);
        double far = distance(rig->grad + at, host->grad + at, count);
        if (!(far <= 5 * tolerance)) fprintf(stderr, "%s\n", rig->plan.tensors[tensor].name);
        CHECK_NEAR(far, 0, 5 * tolerance);
    }
}

static void check_case(const struct model_rig_case *rig_case) {
    struct model_rig host, rig;
    double tolerance = tolerance_of(rig_case);
    CHECK_INT(model_rig_open(&host, rig_case, NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, rig_case, device), STATUS_OK);
    for (int step = 0; step < 2; step++) {
        float loss = model_rig_step(&host, NULL, NULL);
        CHECK_NEAR(model_rig_step(&rig, NULL, NULL), loss, tolerance * (double)loss);
        check_gradient(&rig, &host, tolerance);
        for (uint64_t i = 0; i < rig.plan.value_count; i++)
            rig.weights[i] = host.weights[i] -= 0.1F * host.grad[i];
    }
    model_rig_close(&host);
    model_rig_close(&rig);
}

static void test_as_the_host(void) {
    for (int i = 0; i < model_rig_case_count; i++) {
        char name[128];
        model_rig_name(&model_rig_cases[i], name, sizeof name);
        printf("  %s\n", name);
        fflush(stdout);
        check_case(&model_rig_cases[i]);
    }
}

static void test_repeats_bit_for_bit(void) {
    static const int cases[] = {1, 8};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_rig first, rig;
        CHECK_INT(model_rig_open(&first, &model_rig_cases[cases[i]], device), STATUS_OK);
        CHECK_INT(model_rig_open(&rig, &model_rig_cases[cases[i]], device), STATUS_OK);
        float loss = model_rig_step(&first, NULL, NULL);
        for (int repeat = 0; repeat < 2; repeat++) {
            CHECK(model_rig_step(&rig, NULL, NULL) == loss);
            CHECK(memcmp(rig.grad, first.grad, rig.plan.value_count * sizeof(float)) == 0);
        }
        model_rig_close(&first);
        model_rig_close(&rig);
    }
}

/* Weights that come when the gate is asked for them. */
struct gate {
    struct model_rig *rig;
    const float *source;
};

static bool wait_at_gate(void *context, uint64_t first, uint64_t count) {
    struct gate *gate = context;
    for (uint64_t tensor = first; tensor < first + count; tensor++) {
        uint64_t at = gate->rig->plan.offsets[tensor];
        memcpy(gate->rig->weights + at, gate->source + at,
               model_rig_count(gate->rig, tensor) * sizeof(float));
    }
    return true;
}

/* And are gone when the pass is over. */
static void test_gate(void) {
    struct model_rig first, rig;
    CHECK_INT(model_rig_open(&first, &model_rig_cases[6], device), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &model_rig_cases[6], device), STATUS_OK);
    struct gate gate = {.rig = &rig, .source = first.weights};
    const struct model_gate wait = {.wait = wait_at_gate, .context = &gate};
    struct model_batch batch = model_rig_batch(&rig, 0);
    struct model_gradient gradient = {.values = first.grad, .scale = 1};
    model_set_weights(first.model, first.weights);
    float loss = model_forward(first.model, &batch, &gradient);
    model_backward(first.model, &batch, &gradient, NULL, NULL);
    gradient.values = rig.grad;
    for (int repeat = 0; repeat < 2; repeat++) {
        for (uint64_t i = 0; i < rig.plan.value_count; i++)
            rig.weights[i] = NAN;
        model_expect_weights(rig.model, rig.weights, &wait);
        CHECK(model_forward(rig.model, &batch, &gradient) == loss);
        for (uint64_t i = 0; i < rig.plan.value_count; i++)
            rig.weights[i] = NAN;
        model_backward(rig.model, &batch, &gradient, NULL, NULL);
        CHECK(memcmp(rig.grad, first.grad, rig.plan.value_count * sizeof(float)) == 0);
    }
    model_rig_close(&first);
    model_rig_close(&rig);
}

/* A batch with weights, and another with others that are set while the first one's backward may be
 * under way. */
static void learn_twice(struct model_rig *rig, const float *others) {
    for (int64_t n = 0; n < 2; n++) {
        struct model_batch batch = model_rig_batch(rig, n);
        struct model_gradient gradient = {
            .values = rig->grad, .scale = 0.5F, .add = n > 0, .more = n == 0};
        model_set_weights(rig->model, n == 0 ? rig->weights : others);
        (void)model_forward(rig->model, &batch, &gradient);
        model_backward(rig->model, &batch, &gradient, NULL, NULL);
    }
}

static void test_weights_between(void) {
    struct model_rig host, rig;
    CHECK_INT(model_rig_open(&host, &model_rig_cases[0], NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &model_rig_cases[0], device), STATUS_OK);
    float *others = memory_zeroed((size_t)rig.plan.value_count, sizeof(float));
    for (uint64_t i = 0; i < rig.plan.value_count; i++)
        others[i] = 0.5F * rig.weights[i];
    learn_twice(&host, others);
    for (int repeat = 0; repeat < 4; repeat++) {
        learn_twice(&rig, others);
        check_gradient(&rig, &host, tolerance_of(&model_rig_cases[0]));
    }
    free(others);
    model_rig_close(&host);
    model_rig_close(&rig);
}

static void test_no_memory(void) {
    struct device_memory before, after;
    struct model_rig rig;
    struct model_rig_case large = model_rig_cases[0];
    large.options.B = 1 << 27;
    large.options.T = 9;
    device_memory(device, &before);
    CHECK_INT(model_rig_open(&rig, &large, device), STATUS_MEMORY);
    device_memory(device, &after);
    CHECK_INT(after.used, before.used);
}

int main(void) {
    if (device_count(DEVICE_CUDA) == 0) TEST_SKIP("no CUDA device");
    CHECK_INT(device_open(&device, DEVICE_CUDA, 0), STATUS_OK);
    TEST_RUN(test_as_the_host);
    TEST_RUN(test_repeats_bit_for_bit);
    TEST_RUN(test_gate);
    TEST_RUN(test_weights_between);
    TEST_RUN(test_no_memory);
    device_close(device);
    return 0;
}
