/* bench_apply.h - `rubato bench apply`: one shard, fed with the pushes of all workers in memory.
 *
 * A channel that lies in front of it delivers frames whose payloads were encoded before, and takes
 * the answers as sent at once: what is measured is checksum, decoding, summing in rank order, the
 * optimizer, and the encoding of answers, on one thread.
 */
#ifndef RUBATO_TOOLS_BENCH_APPLY_H
#define RUBATO_TOOLS_BENCH_APPLY_H

#include "tools/bench_rig.h"

/* INVALID: a codec or optimizer that cannot be; MEMORY; logged. */
enum status bench_apply_run(struct bench_run *run, struct bench_result *result) WARN_UNUSED;

#endif
