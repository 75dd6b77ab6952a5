/* server_step.h - AdamW over a shard's memory against passes over the same without arithmetic.
 *
 * Each thread has memory of its own, laid out as a shard's, and makes one turn of each thing after
 * the other; times are its processor time. A turn's reference is the pass of the same turn.
 */
#ifndef RUBATO_BENCH_SERVER_STEP_H
#define RUBATO_BENCH_SERVER_STEP_H

#include "base/memory.h"

#include <stdint.h>

/* Prints a table: `values` (a multiple of 2^18) a thread, medians over `turns`. */
void server_step_measure(int64_t values, int64_t turns, int64_t threads);

/* Blocks of `values` in all (a multiple of 2^18), which the calling thread steps, in turns with a
 * peer. */
struct server_step {
    struct arena arena;
    struct block *blocks; /* [count] */
    int64_t count;
    int64_t step; /* from 1: the next one */
};

void server_step_open(struct server_step *steps, int64_t values);

/* The processor seconds of one more AdamW step with moments in f32. */
double server_step_make(struct server_step *steps);

void server_step_close(struct server_step *steps);

#endif
