/* sample.h - text from a trained model, a token at a time (softmax at a temperature). */
#ifndef RUBATO_WORKER_SAMPLE_H
#define RUBATO_WORKER_SAMPLE_H

#include "worker/model.h"

struct sample_request {
    const int32_t *prompt; /* [prompt_count], at least one token; the last T are used */
    int64_t prompt_count;
    int64_t count;     /* tokens to make */
    float temperature; /* 0: the likeliest token */
    uint64_t seed;
};

/* tokens [request.count]. The model was opened with B >= 1, T >= 1. MEMORY. */
enum status sample_generate(struct model *model, const struct model_shape *shape,
                            const float *weights, const struct sample_request *request,
                            int32_t *tokens) WARN_UNUSED;

#endif
