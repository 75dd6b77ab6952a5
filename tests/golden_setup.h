/* golden_setup.h - one of the golden models with its plan and buffers, and what its losses and
 * gradients are checked by: what the tests of all families do alike.
 *
 * A plain loop of one process over the plan's blocks, with one clip for all, as the servers do it.
 */
#ifndef RUBATO_TESTS_GOLDEN_SETUP_H
#define RUBATO_TESTS_GOLDEN_SETUP_H

#include "tests/golden_gpt2.h"
#include "tests/test.h"

/* Small, so that matrices are cut and a pack holds several vectors. */
#define GOLDEN_BLOCK_VALUES 1000
#define GOLDEN_TOKENS       (GOLDEN_B * GOLDEN_T)

struct golden_setup {
    struct plan plan;
    struct model *model;
    float *weights, *grad;
    int32_t tokens[GOLDEN_TOKENS], targets[GOLDEN_TOKENS];
};

void golden_open(struct golden_setup *setup, const struct model_shape *shape,
                 const struct model_options *options);

void golden_close(struct golden_setup *setup);

/* The loss; its gradient goes to setup->grad. */
float golden_compute(struct golden_setup *setup);

/* Each value of the gradient within `tolerance` of the greatest of its tensor. */
void golden_check_gradients(const struct golden_setup *setup, const char *path, double tolerance);

/* One update of all blocks, as the servers do it: sums in order of id, one clip for all. */
void golden_update(struct golden_setup *setup, float *m, float *v, double lr, int64_t step);

/* The first `steps` losses of a curve, each within `tolerance`. */
void golden_check_curve(const struct model_shape *shape, struct golden_curve curve,
                        enum compute_type type, int64_t steps, double tolerance);

#endif
