/* step.h - one thing at a time of what cadence.h says: a step, a report, an install.
 *
 * The weight of a report is its tokens over those that a worker with full batches has at the usual
 * pace; a token counts if it is a target. Batches of a step are scaled such that what is pushed is
 * the weight times the gradient of the mean loss over all targets of the step that count: so the
 * weighted mean over workers is the gradient of the mean over all their targets, however they are
 * spread over batches and workers.
 */
#ifndef RUBATO_WORKER_STEP_H
#define RUBATO_WORKER_STEP_H

#include "worker/train.h"

/* Forward and backward of the step's batches; then pushes (gradient modes) or a step of the
 * worker's own. */
void step_compute(struct trainer *trainer);

/* Local modes: pushes what came of the steps since the fragment's last report. */
void step_report(struct trainer *trainer);

/* What was asked for has come: into the weights that steps are made on. */
void step_install(struct trainer *trainer);

/* Writes the line of the step that was computed last, if it is not written yet. */
void step_close(struct trainer *trainer);

/* A validation is due when that line is written. */
bool step_validates(const struct trainer *trainer);

#endif
