/* server_step.h - AdamW over a shard's memory against passes over the same without arithmetic.
 *
 * Each thread has memory of its own, laid out as a shard's, and makes one turn of each thing after
 * the other; times are its processor time. A turn's reference is the pass of the same turn.
 */
#ifndef RUBATO_BENCH_SERVER_STEP_H
#define RUBATO_BENCH_SERVER_STEP_H

#include "base/status.h"

#include <stdint.h>

/* Prints a table: `values` (a multiple of 2^18) a thread, medians over `turns`. Returns the
 * processor seconds of one step with moments in f32, a thread; 0 where there was no thread. */
double server_step_measure(int64_t values, int64_t turns, int64_t threads);

#endif
