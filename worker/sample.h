/* sample.h - text from a trained model, a token at a time (softmax at a temperature).
 *
 * Each token is drawn from the model's distribution after the last T tokens. Their keys and values
 * are kept, so that a token costs one position, until the text is longer than T: from then on every
 * position moves with each token, and all are computed afresh. Token i uses number i of the stream
 * (seed, RANDOM_SAMPLING), so the same request gives the same text.
 */
#ifndef RUBATO_WORKER_SAMPLE_H
#define RUBATO_WORKER_SAMPLE_H

#include "worker/model.h"

#include <stdatomic.h>

struct sample_request {
    const int32_t *prompt; /* [prompt_count], at least one token; the last T are used */
    int64_t prompt_count;
    int64_t count;     /* tokens to make, >= 0 */
    float temperature; /* >= 0; 0: the likeliest token, the lowest of equals */
    uint64_t seed;
    const _Atomic bool *stop; /* NULL, or ends the work (AGAIN) once it is true */
    int64_t top_k; /* drawn from the likeliest so many, and equals of the last; 0: from all */
};

/* tokens [request.count]. The model was opened with B >= 1, T >= 1, and `shape`; it is left with
 * `weights` set. MEMORY; INVALID,
 * logged: an empty prompt, a prompt token outside 0..vocab-1, a temperature below 0 or not a
 * number, top_k below 0. The thread that drives the model. */
enum status sample_generate(struct model *model, const struct model_shape *shape,
                            const float *weights, const struct sample_request *request,
                            int32_t *tokens) WARN_UNUSED;

#endif
