/* training.h - one process that trains a model alone, each phase of a step measured.
 *
 * What a worker and its servers do together, without them: load the weights, forward, backward,
 * clip to the global norm 1, AdamW over the plan's blocks, with as many threads as the calling
 * thread has (kernels/threads.h). On a device the weights go there in the forward phase; clip and
 * optimizer stay on the host. Batches are random tokens. One thread owns it.
 */
#ifndef RUBATO_BENCH_TRAINING_H
#define RUBATO_BENCH_TRAINING_H

#include "base/memory.h"
#include "kernels/device.h"
#include "proto/plan.h"
#include "worker/model.h"

enum training_phase {
    TRAINING_LOAD, /* the weights, into the layout that products like */
    TRAINING_FORWARD,
    TRAINING_BACKWARD,
    TRAINING_CLIP,
    TRAINING_OPTIMIZER,
    TRAINING_PHASES
};

struct training_config {
    const char *model; /* as --model */
    int64_t vocab, B, T;
    bool bf16;
    const char *recompute; /* as --recompute; valid */
    float dropout;
    struct device *device; /* the caller's, open */
};

struct training {
    struct training_config config;
    struct model_shape shape;
    struct model_options options;
    struct plan plan;
    struct model *model;
    struct arena arena;
    bool pinned;                               /* the arena, for copies from and to the device */
    float *weights, *grad, *moment1, *moment2; /* [plan.value_count] */
    int32_t *tokens, *targets;                 /* [B, T] */
    int64_t steps_done;
};

/* INVALID (logged: the model's name), MEMORY, DEVICE. */
enum status training_open(struct training *training,
                          const struct training_config *config) WARN_UNUSED;

/* Harmless on a zeroed struct. */
void training_close(struct training *training);

/* Bytes that the model's activations and products are planned to take (model_bytes). */
uint64_t training_model_bytes(const struct training *training);

/* One step; seconds [TRAINING_PHASES] are what each phase took. Returns the loss before it; NaN if
 * the device failed then: model_status() says so, also of what failed later. */
float training_step(struct training *training, double *seconds);

/* Floating-point operations of the products with weights in one step, forward and backward:
 * 6 a value of a matrix and token. The attention itself is not counted. */
double training_flops(const struct training *training);

/* Seconds of the same products one by one through oneDNN (onednn_peak.h). */
double training_peak_seconds(const struct training *training);

#endif
