/* finish.h - validation, and what the saver leaves behind: weights, a sample, the result. */
#ifndef RUBATO_WORKER_FINISH_H
#define RUBATO_WORKER_FINISH_H

#include "worker/train.h"

/* Mean loss over the targets that count in --eval-batches batches of the validation stream, always
 * the same ones; NaN when the job ended meanwhile. The weights must be settled. */
double finish_validate(struct trainer *trainer);

/* Validates, writes model.safetensors and config.json into the run's folder, samples, and prints
 * the result (where the trainer has a report). IO, logged; CORRUPT: the validation loss is not
 * finite, and nothing is written; STALE: the job ended meanwhile. */
enum status finish_run(struct trainer *trainer) WARN_UNUSED;

#endif
