/* sim_reference.h - the oracle of the simulator: sync training by one plain loop.
 *
 * One process that computes the W batches of each step in rank order and adds their gradients, with
 * the kernels' plain twins, a norm of its own, and no server, worker or network code. The weights
 * that gradients are taken of go through the pull codec, as the workers' do.
 */
#ifndef RUBATO_TESTS_SIM_REFERENCE_H
#define RUBATO_TESTS_SIM_REFERENCE_H

#include "proto/job.h"
#include "worker/data.h"
#include "worker/model.h"

/* Trains as `job` says (its workers, steps, optimizer, codecs, model, seed) on the stream -> final
 * weights as the workers hold them: weights [plan.value_count]. The plan is the job's for any
 * number of shards. */
void sim_reference(const struct job *job, const struct plan *plan, const struct model_shape *shape,
                   const struct data_stream *stream, float *weights);

#endif
