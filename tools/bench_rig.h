/* bench_rig.h - what the kinds of `rubato bench` share: options, processes, measuring.
 *
 * A run forks one server process with a thread a shard, and the workers, as a job has them. Their
 * channels come from transport/endpoint, as the programs' do; their addresses, counts and latencies
 * go through memory that all share (the board). The parent waits until everyone is connected, lets
 * them warm up, and takes the counts and the processes' CPU clocks at both ends of the time that is
 * measured. No wait is without a deadline; children die with their parent.
 */
#ifndef RUBATO_TOOLS_BENCH_RIG_H
#define RUBATO_TOOLS_BENCH_RIG_H

#include "base/idle.h"
#include "base/options.h"
#include "proto/job.h"
#include "transport/channel.h"
#include "transport/endpoint.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_SAMPLES 2048 /* last latencies of a worker that are kept */

struct bench_options {
    char bytes[OPTION_TEXT_MAX], direction[OPTION_TEXT_MAX], json[OPTION_TEXT_MAX];
    char channel[OPTION_TEXT_MAX], wire[OPTION_TEXT_MAX], poll[OPTION_TEXT_MAX];
    char net_devices[OPTION_TEXT_MAX], tls[OPTION_TEXT_MAX];
    char push[OPTION_TEXT_MAX], pull[OPTION_TEXT_MAX], optimizer[OPTION_TEXT_MAX];
    int64_t workers, shards, blocks, depth;
    double seconds;
    bool checksum;
};

/* The end of one owner of a channel: a shard, or a worker. */
struct bench_seat {
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t address_bytes;
    /* Of finished messages, counted where they are taken. */
    _Atomic uint64_t payload_bytes; /* what was moved: of raw frames, or of values in f32 */
    _Atomic uint64_t wire_bytes;    /* headers included, both directions */
    _Atomic uint64_t messages;
    _Atomic uint64_t sampled; /* latencies so far */
    float latency_us[BENCH_SAMPLES];
};

struct bench_board {
    _Atomic uint32_t published, connected; /* seats */
    _Atomic bool stop;
    struct bench_seat seats[]; /* [shards], then [workers] */
};

struct bench_run {
    const struct bench_options *options;
    const char *direction; /* push, pull or both */
    size_t bytes;          /* of a message, or of a block in f32 */
    struct job job;
    struct options job_options;
    struct endpoint endpoint;
    struct paced_link link;
    struct bench_board *board;
    int64_t deadline_ns; /* when children give up by themselves */
    int exit_code;       /* of the first child that failed; 0: none has */
};

struct bench_result {
    double seconds;
    double payload_gb, wire_gb; /* 1e9 bytes */
    double server_cpu, workers_cpu;
    double messages;
    double latency_median_us, latency_p99_us; /* NAN: not measured */
};

/* The part of one process: `index` of a worker; 0. Runs until the board says stop. */
typedef enum status bench_part_fn(struct bench_run *run, uint32_t index);

/* options -> run for messages of `bytes`. INVALID, DENIED, IO, logged. */
enum status bench_rig_init(struct bench_run *run, const struct bench_options *options,
                           const char *direction, size_t bytes) WARN_UNUSED;

/* Forks, measures, ends them all. A status of a child's, or TIMEOUT: not all came; logged. */
enum status bench_rig_run(struct bench_run *run, bench_part_fn *server, bench_part_fn *worker,
                          struct bench_result *result) WARN_UNUSED;

/* For the parts. Opens the channel of a seat and publishes its address. */
enum status bench_rig_open(struct bench_run *run, uint32_t seat,
                           const struct channel_config *config,
                           struct channel **channel) WARN_UNUSED;

/* Connects peers 0..count-1 to the seats from `first` on, once they are published; of the channels
 * of `channels` [channel_count]. TIMEOUT. */
enum status bench_rig_connect(struct bench_run *run, struct channel **channels,
                              uint32_t channel_count, uint32_t first, uint32_t count) WARN_UNUSED;

/* All seats are connected, or the run is over. */
bool bench_rig_is_complete(const struct bench_run *run);

bool bench_rig_is_over(const struct bench_run *run);

/* After a look at the channel: looks again or sleeps, as --poll says, for 20 ms at most. */
void bench_rig_rest(struct idle *idle, struct channel *channel, bool worked);

/* A message of this seat that took so long is done. */
void bench_rig_sample(struct bench_seat *seat, int64_t took_ns);

#endif
