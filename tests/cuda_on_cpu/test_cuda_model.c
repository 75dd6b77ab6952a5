/* Proves that the model computes on a CUDA device what it computes on the host: loss and gradient
 * of a step of two accumulated batches, for each case of model_rig.c (both families, heads tied and
 * not, f32 and bf16, dropout, recomputation, odd sizes), step after step with weights that change;
 * the same bits each time; gradients that are added apart; weights that come at the gate, or
 * between two batches, or that were changed on the device; and a model that does not fit.
 * And that steps of a worker's own (worker/local.h) are the same there as on the host: with the
 * device's optimizers, frozen blocks and a v that stays after a while, what is reported, and what
 * an answer makes of it, of fragments, with and without a mix and a reset, and where own weights
 * are not finite, bit for bit; with a clip, whose norm is added in another order, within a
 * rounding.
 */
#include "kernels/device.h"
#include "tests/model_rig.h"
#include "tests/test.h"
#include "worker/local.h"

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
        uint64_t at = rig->plan.offsets[tensor], count = plan_values(&rig->plan, tensor);
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

/* Gradients that are added apart have the bits of a sum of each batch's, and accumulated ones have
 * not. */
static void check_apart(const struct model_rig_case *rig_case) {
    struct model_rig plain, rig;
    struct model_rig_case apart = *rig_case;
    apart.options.apart = true;
    CHECK_INT(model_rig_open(&plain, rig_case, device), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &apart, device), STATUS_OK);
    float *sum = memory_zeroed((size_t)plain.plan.value_count, sizeof(float));
    (void)model_rig_step(&rig, NULL, NULL);
    (void)model_rig_step(&plain, NULL, NULL);
    CHECK(memcmp(rig.grad, plain.grad, plain.plan.value_count * sizeof(float)) != 0);
    model_set_weights(plain.model, plain.weights);
    for (int64_t n = 0; n < MODEL_RIG_BATCHES; n++) {
        struct model_batch batch = model_rig_batch(&plain, n);
        struct model_gradient gradient = {.values = plain.grad, .scale = 1.0 / MODEL_RIG_BATCHES};
        (void)model_forward(plain.model, &batch, &gradient);
        model_backward(plain.model, &batch, &gradient, NULL, NULL);
        for (uint64_t i = 0; i < plain.plan.value_count; i++)
            sum[i] = n == 0 ? plain.grad[i] : sum[i] + plain.grad[i];
    }
    CHECK(memcmp(rig.grad, sum, plain.plan.value_count * sizeof(float)) == 0);
    free(sum);
    model_rig_close(&plain);
    model_rig_close(&rig);
}

static void test_apart(void) {
    check_apart(&model_rig_cases[3]);
    check_apart(&model_rig_cases[6]);
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
               plan_values(&gate->rig->plan, tensor) * sizeof(float));
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

/* Weights that nobody copies: half of them, made there. */
static void test_own_weights(void) {
    struct model_rig host, rig;
    CHECK_INT(model_rig_open(&host, &model_rig_cases[0], NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &model_rig_cases[0], device), STATUS_OK);
    CHECK(model_device_weights(host.model) == NULL);
    float *own = model_device_weights(rig.model);
    struct model_batch batch = model_rig_batch(&rig, 0);
    for (int repeat = 0; repeat < 2; repeat++) {
        for (uint64_t i = 0; i < rig.plan.value_count; i++)
            rig.weights[i] = host.weights[i] *= 0.5F;
        model_set_weights(host.model, host.weights);
        float loss = model_forward(host.model, &batch, NULL);
        device_copy(device, DEVICE_COMPUTE, own, rig.weights,
                    (size_t)rig.plan.value_count * sizeof(float), DEVICE_TO);
        model_set_weights(rig.model, NULL);
        CHECK_NEAR(model_forward(rig.model, &batch, NULL), loss, 1e-5);
    }
    model_rig_close(&host);
    model_rig_close(&rig);
}

/* ---- steps of a worker's own ---- */

/* On the host, or on the device. */
struct own {
    struct device *device;
    struct local local;
    float *weights, *grad; /* of the device */
    float *here;           /* [value_count] what goes there or comes from there */
};

/* Of a gradient that is not finite. */
enum { UNSOUND = 1000 };

static struct job job;
static struct plan plan;
static size_t vector_bytes;

/* Of a model with blocks of odd sizes; words "name=value". */
static void own_job(const char *text) {
    static struct options options;
    struct model_shape shape;
    char copy[256], *rest = NULL, why[256];
    uint64_t count = 0;
    options_init(&options, job_table, job_table_count, &job);
    CHECK(snprintf(copy, sizeof copy, "%s", text) < (int)sizeof copy);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value++ = 0;
        CHECK_INT(options_set(&options, options_find(&options, word), value, ORIGIN_FLAG, why,
                              sizeof why),
                  STATUS_OK);
    }
    CHECK_INT(model_shape_parse("gpt2:1x12x3", 19, 9, &shape, why, sizeof why), STATUS_OK);
    struct tensor *tensors = model_tensors(&shape, &count);
    struct plan_options planned = job_plan_options(&job, 1);
    CHECK_INT(plan_build(&plan, tensors, count, &planned), STATUS_OK);
    free(tensors);
    vector_bytes = (size_t)plan.value_count * sizeof(float);
}

static void own_open(struct own *own, struct device *where) {
    *own = (struct own){.device = where};
    own->weights = device_take(where, vector_bytes);
    own->grad = device_take(where, vector_bytes);
    own->here = memory_zeroed(1, vector_bytes);
    const struct local_place place = {.device = where, .weights = own->weights, .grad = own->grad};
    CHECK(inner_can(&job, where));
    CHECK_INT(local_init(&own->local, &job, &plan, NULL, &place, 1), STATUS_OK);
}

static void own_close(struct own *own) {
    local_free(&own->local);
    device_give(own->device, own->weights);
    device_give(own->device, own->grad);
    free(own->here);
}

/* Values in [-size, size], other ones for each seed. */
static void own_make(float *values, uint32_t seed, float size) {
    uint32_t state = seed * 2654435761U + 99U;
    for (uint64_t i = 0; i < plan.value_count; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = size * ((float)(state >> 8) / 8388608.0F - 1.0F);
    }
}

static enum status own_step(struct own *own, uint32_t seed) {
    own_make(own->here, seed, 3.0F);
    if (seed == UNSOUND) own->here[plan.value_count - 1] = NAN;
    device_copy(own->device, DEVICE_COMPUTE, own->grad, own->here, vector_bytes, DEVICE_TO);
    return local_step(&own->local, 0.5, 0.01);
}

/* The weights, in own->here. */
static void own_fetch(struct own *own) {
    device_copy(own->device, DEVICE_COMPUTE, own->here, own->weights, vector_bytes, DEVICE_FROM);
    CHECK_INT(device_wait(own->device, DEVICE_COMPUTE), STATUS_OK);
}

/* In the middle of a block that is to be installed. */
static void own_spoil(struct own *own, uint64_t fragment) {
    static const float infinity = INFINITY;
    uint64_t id = 0;
    while (plan.blocks[id].fragment != fragment)
        id++;
    device_copy(own->device, DEVICE_COMPUTE, own->weights + plan.blocks[id].offset + 1, &infinity,
                sizeof infinity, DEVICE_TO);
}

/* Two steps, of which the second is left out in turn 1, a report and its answer. */
static void own_turn(struct own *own, uint32_t turn) {
    uint64_t fragment = turn % plan.fragment_count;
    CHECK_INT(own_step(own, 10 * turn), STATUS_OK);
    CHECK_INT(own_step(own, turn == 1 ? UNSOUND : 10 * turn + 1),
              turn == 1 ? STATUS_CORRUPT : STATUS_OK);
    CHECK_INT(local_delta(&own->local, fragment, 0.75, false), STATUS_OK);
    own_make(own->here, 10 * turn + 2, 1.0F);
    if (turn == 2 || turn == 3) own_spoil(own, fragment);
    for (uint64_t id = 0; id < plan.block_count; id++) {
        const struct plan_block *block = &plan.blocks[id];
        if (block->fragment != fragment) continue;
        memcpy(own->local.anchor + block->offset, own->here + block->offset,
               (size_t)block->count * sizeof(float));
    }
    CHECK_INT(local_install(&own->local, fragment), STATUS_OK);
    own_fetch(own);
}

static void check_same(const char *what, const float *values, const float *expected,
                       double tolerance) {
    for (uint64_t i = 0; i < plan.value_count; i++) {
        bool same = memcmp(&values[i], &expected[i], sizeof(float)) == 0;
        if (same || fabs((double)values[i] - (double)expected[i]) <= tolerance) continue;
        fprintf(stderr, "%s [%llu] is %a, expected %a\n", what, (unsigned long long)i,
                (double)values[i], (double)expected[i]);
        exit(1);
    }
}

static void local_case(const char *options, double tolerance) {
    struct own host, there;
    printf("  %s\n", options);
    own_job(options);
    own_open(&host, device_host());
    own_open(&there, device);
    for (struct own *own = &host; own != NULL; own = own == &host ? &there : NULL) {
        own_make(own->local.anchor, 77, 1.0F);
        CHECK_INT(local_install(&own->local, LOCAL_ALL), STATUS_OK);
    }
    for (uint32_t turn = 0; turn < 4; turn++) {
        own_turn(&host, turn);
        own_turn(&there, turn);
        check_same("delta", there.local.delta, host.local.delta, tolerance);
        check_same("weights", there.here, host.here, tolerance);
        for (uint64_t id = 0; id < plan.block_count; id++)
            CHECK_INT(there.local.members[0].inner.blocks[id].updates,
                      host.local.members[0].inner.blocks[id].updates);
    }
    own_close(&host);
    own_close(&there);
    plan_free(&plan);
}

static void test_local(void) {
    local_case("mode=local:2 clip=0 block-values=101", 0);
    local_case("mode=diloco:2 clip=0 block-values=100 fragments=2 mix=0.5 inner-state=reset", 0);
    local_case(
        "mode=diloco:2 clip=0 freeze-v-after=2 fragments=2 rates=*.wte.weight=0,*.ln_1.*=0.5", 0);
    local_case("mode=local:2 clip=0 optimizer=sgd momentum=0.9 mix=0.25", 0);
    local_case("mode=local:2 clip=0 optimizer=sgd momentum=0", 0);
    local_case("mode=local:2 clip=1 optimizer=sgd", 1e-6);
    own_job("mode=local:2 optimizer=lion");
    CHECK(!inner_can(&job, device));
    plan_free(&plan);
    own_job("mode=local:2 moments=bf16");
    CHECK(!inner_can(&job, device));
    plan_free(&plan);
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
    TEST_RUN(test_apart);
    TEST_RUN(test_gate);
    TEST_RUN(test_weights_between);
    TEST_RUN(test_own_weights);
    TEST_RUN(test_local);
    TEST_RUN(test_no_memory);
    device_close(device);
    return 0;
}
