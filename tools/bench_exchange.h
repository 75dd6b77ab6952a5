/* bench_exchange.h - `rubato bench exchange`: raw frames between the ends of data channels.
 *
 * push: workers send payloads, a message is over when its buffer is free again. pull: workers send
 * bare headers, shards answer with payloads. both: payloads go and are answered with as many bytes,
 * as in training. Each worker keeps --depth messages under way to each shard. Headers are encoded
 * and checked as in a job; payloads are neither encoded nor looked at (--checksum: their XXH3 is
 * taken and checked, as in a job).
 */
#ifndef RUBATO_TOOLS_BENCH_EXCHANGE_H
#define RUBATO_TOOLS_BENCH_EXCHANGE_H

#include "tools/bench_rig.h"

bench_part_fn bench_exchange_server;
bench_part_fn bench_exchange_worker;

#endif
