#include "worker/sample.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "worker/model_internal.h"

#include <inttypes.h>
#include <math.h>
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

enum status sample_generate(struct model *model, const struct model_shape *shape,
                            const float *weights, const struct sample_request *request,
                            int32_t *tokens) {
    int64_t T = model->T, V = shape->vocab;
    TRY(check_request(request, V));
    struct arena arena;
    size_t context_bytes = (size_t)T * sizeof(int32_t), logits_bytes = (size_t)V * sizeof(float);
    TRY(arena_init(&arena, arena_need(context_bytes) + arena_need(logits_bytes)));
    int32_t *context = arena_take(&arena, context_bytes);
    float *logits = arena_take(&arena, logits_bytes);
    int64_t length = request->prompt_count < T ? request->prompt_count : T;
    memcpy(context, request->prompt + request->prompt_count - length,
           (size_t)length * sizeof(*context));
    struct random_stream stream;
    random_open(&stream, request->seed, RANDOM_SAMPLING, 0);
    for (int64_t i = 0; i < request->count; i++) {
        model_logits(model, weights, context, length, logits);
        tokens[i] = request->temperature > 0
                        ? draw(logits, V, request->temperature, random_unit(&stream))
                        : likeliest(logits, V);
        if (length == T) {
            length--;
            memmove(context, context + 1, (size_t)length * sizeof(*context));
        }
        context[length++] = tokens[i];
    }
    arena_free(&arena);
    return STATUS_OK;
}
