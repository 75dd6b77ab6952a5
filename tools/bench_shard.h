/* bench_shard.h - `rubato bench push` and `pull`: a real server's shards and real exchanges.
 *
 * The server process runs its shards on threads and decides the rounds' votes; each worker pushes
 * all blocks (values of a normal distribution) and waits until their answers are installed, or asks
 * for all weights and waits for them, round after round. There is no coordinator: sync, all
 * workers in each round.
 */
#ifndef RUBATO_TOOLS_BENCH_SHARD_H
#define RUBATO_TOOLS_BENCH_SHARD_H

#include "proto/plan.h"
#include "tools/bench_rig.h"

bench_part_fn bench_shard_server;
bench_part_fn bench_shard_worker;

/* The model of a run: one matrix, of which each row is a block of run->bytes. INVALID, logged. */
enum status bench_shard_plan(const struct bench_run *run, struct plan *plan) WARN_UNUSED;

/* Gradients of worker `rank`, normal with deviation 0.01; the caller's to free(). */
float *bench_shard_values(const struct plan *plan, uint32_t rank);

#endif
