#include "worker/sample.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

static enum status check_request(const struct sample_request *request, int64_t vocab) {
    if (request->prompt_count < 1) {
        log_error("the prompt is empty");
        return STATUS_INVALID;
    }
    if (!(request->temperature >= 0)) {
        log_error("temperature %g is not 0 or more", (double)request->temperature);
        return STATUS_INVALID;
    }
    if (request->top_k < 0) {
        log_error("top-k %" PRId64 " is not 0 or more", request->top_k);
        return STATUS_INVALID;
    }
    for (int64_t i = 0; i < request->prompt_count; i++) {
        if (request->prompt[i] >= 0 && request->prompt[i] < vocab) continue;
        log_error("prompt token %" PRId32 " (number %" PRId64 ") is not in 0..%" PRId64,
                  request->prompt[i], i, vocab - 1);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

/* The first of the greatest logits; 0 when none compares (a diverged model). */
static int32_t likeliest(const float *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t v = 1; v < vocab; v++) {
        if (logits[v] > logits[best]) best = v;
    }
    return (int32_t)best;
}

/* An integer that is ordered as the floats are. */
static uint32_t order_key(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 != 0 ? ~bits : bits | UINT32_C(1) << 31;
}

/* Rules out all that are less than the k-th greatest logit, whose key is found bit by bit: the
 * greatest that k logits reach. */
static void keep_top(float *logits, int64_t vocab, int64_t k) {
    uint32_t least = 0;
    if (k == 0 || k >= vocab) return;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t key = least | UINT32_C(1) << bit;
        int64_t reached = 0;
        for (int64_t v = 0; v < vocab; v++)
            reached += order_key(logits[v]) >= key;
        if (reached >= k) least = key;
    }
    for (int64_t v = 0; v < vocab; v++) {
        if (order_key(logits[v]) < least) logits[v] = -INFINITY;
    }
}

/* Inverts the distribution function of softmax(logits / temperature) at `unit`, in [0, 1).
 * logits [vocab] become probabilities, not normalised. */
static int32_t draw(float *logits, int64_t vocab, float temperature, float unit) {
    int32_t best = likeliest(logits, vocab);
    float most = logits[best];
    double sum = 0;
    for (int64_t v = 0; v < vocab; v++) {
        logits[v] = expf((logits[v] - most) / temperature);
        sum += logits[v];
    }
    double left = (double)unit * sum;
    for (int64_t v = 0; v < vocab; v++) {
        left -= logits[v];
        if (left < 0) return (int32_t)v;
    }
    return best; // rounding, or logits that are not finite
}

/* The text so far, as the model sees it. */
struct context {
    int32_t *tokens; /* [T] the last `length` of the text */
    int64_t length;
    int64_t cached; /* tokens whose keys and values are in the cache */
    float *cache;
};

static void append(struct context *context, int64_t T, int32_t token) {
    if (context->length == T) {
        context->length--;
        memmove(context->tokens, context->tokens + 1,
                (size_t)context->length * sizeof(*context->tokens));
        context->cached = 0;
    }
    context->tokens[context->length++] = token;
}

static void next_logits(struct model *model, struct context *context, float *logits) {
    int64_t from = context->cached;
    model_decode(model, context->cache, context->tokens + from, context->length - from, from,
                 logits);
    context->cached = context->length;
}

enum status sample_generate(struct model *model, const struct model_shape *shape,
                            const float *weights, const struct sample_request *request,
                            int32_t *tokens) {
    int64_t T = model_longest(model), V = shape->vocab;
    TRY(check_request(request, V));
    struct arena arena;
    size_t context_bytes = (size_t)T * sizeof(int32_t), logits_bytes = (size_t)V * sizeof(float);
    size_t cache_bytes = (size_t)model_cache_count(model) * sizeof(float);
    TRY(arena_init(&arena,
                   arena_need(context_bytes) + arena_need(logits_bytes) + arena_need(cache_bytes)));
    int64_t length = request->prompt_count < T ? request->prompt_count : T;
    struct context context = {.tokens = arena_take(&arena, context_bytes), .length = length};
    float *logits = arena_take(&arena, logits_bytes);
    context.cache = arena_take(&arena, cache_bytes);
    memcpy(context.tokens, request->prompt + request->prompt_count - length,
           (size_t)length * sizeof(*context.tokens));
    model_set_weights(model, weights);
    struct random_stream stream;
    random_open(&stream, request->seed, RANDOM_SAMPLING, 0);
    bool stopped = false;
    for (int64_t i = 0; i < request->count && !stopped; i++) {
        next_logits(model, &context, logits);
        keep_top(logits, V, request->top_k);
        tokens[i] = request->temperature > 0
                        ? draw(logits, V, request->temperature, random_unit(&stream))
                        : likeliest(logits, V);
        append(&context, T, tokens[i]);
        stopped = request->stop != NULL && atomic_load(request->stop);
    }
    arena_free(&arena);
    return stopped ? STATUS_AGAIN : STATUS_OK;
}
