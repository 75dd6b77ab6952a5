/* model_rig.h - a small model on a device, with weights and batches that are a pure function of the
 * case: so two rigs of one case, on two devices, must compute the same.
 */
#ifndef RUBATO_TESTS_MODEL_RIG_H
#define RUBATO_TESTS_MODEL_RIG_H

#include "worker/model.h"

#define MODEL_RIG_BATCHES 2

struct model_rig_case {
    const char *model;            /* as --model */
    bool tied;                    /* Llama's head */
    struct model_options options; /* all but `training`, which it is, and the device */
};

struct model_rig {
    struct model_shape shape;
    struct plan plan;
    struct model *model;
    int64_t B, T;
    float *weights, *grad;     /* [plan.value_count] */
    int32_t *tokens, *targets; /* [MODEL_RIG_BATCHES, B, T]; some targets do not count */
};

/* Families, types, recomputation, dropout, batches of odd sizes. */
extern const struct model_rig_case model_rig_cases[];
extern const int model_rig_case_count;

/* What it is, for messages. */
void model_rig_name(const struct model_rig_case *rig_case, char *text, size_t text_bytes);

/* MEMORY or DEVICE of model_open; then there is nothing to close. */
enum status model_rig_open(struct model_rig *rig, const struct model_rig_case *rig_case,
                           struct device *device) WARN_UNUSED;
void model_rig_close(struct model_rig *rig);

struct model_batch model_rig_batch(const struct model_rig *rig, int64_t number);

/* A whole step: both batches, accumulated, into grad -> the mean of their losses. */
float model_rig_step(struct model_rig *rig, model_ready_fn *ready, void *context);

#endif
