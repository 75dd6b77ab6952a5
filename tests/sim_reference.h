/* sim_reference.h - the oracle of the simulator: rounds of all workers by one plain loop.
 *
 * One process that computes the W workers' batches in rank order and adds what they report, with
 * the kernels' plain twins, a norm and weights of its own, and no server, worker or network code.
 * Sync: each step's gradients. Local modes: each worker's own steps, fragments, overlap and mix,
 * and the servers' step (average or nesterov) on the mean of what the workers moved by. What
 * travels goes through the push and pull codecs (with --push signsgd, --push-policy all only).
 * --optimizer worker:NAME: the same step, on the mean gradient that the servers' own encoder has
 * coded. worker:1bit-adam: the paper's algorithm in double, so its weights are near, not equal.
 */
#ifndef RUBATO_TESTS_SIM_REFERENCE_H
#define RUBATO_TESTS_SIM_REFERENCE_H

#include "proto/job.h"
#include "worker/data.h"
#include "worker/model.h"

/* Trains as `job` says (its workers, mode, steps, optimizers, codecs, model, seed, padding) on the
 * stream -> final weights as the workers hold them: weights [plan.value_count]. The plan is the
 * job's for any number of shards. */
void sim_reference(const struct job *job, const struct plan *plan, const struct model_shape *shape,
                   const struct data_stream *stream, float *weights);

/* The same from words of options as "name=value name=value", on the part of the data that workers
 * train on -> new memory, free() it; *values as in the plan, *blocks those that are
 * not frozen. */
float *sim_reference_of(const char *words, int64_t workers, const struct data *data,
                        uint64_t *values, uint64_t *blocks);

#endif
