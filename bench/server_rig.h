/* server_rig.h - one shard with simulated workers, in one thread and without a network.
 *
 * Workers' frames are made by hand: reports of int8 payloads, which are the same for any number of
 * workers and together larger than the caches; answers are taken and thrown away. What is timed is
 * the shard alone: checks of frames and payloads, decoding, optimizer, encoding, check-sums.
 */
#ifndef RUBATO_BENCH_SERVER_RIG_H
#define RUBATO_BENCH_SERVER_RIG_H

#include "server/shard_parts.h"

/* Payloads of pushes: [sets][blocks]. */
struct rig_payloads {
    uint64_t sets, blocks;
    size_t bytes;  /* of each */
    uint8_t *wire; /* one behind the other */
    uint64_t *xxh3;
};

/* A data channel whose events the bench makes, and whose sends are over at once. */
struct rig_channel {
    struct channel channel; /* first */
    struct channel_event *events;
    size_t capacity, head, count;
    uint8_t (*headers)[FRAME_BYTES]; /* [slots] */
    uint32_t *free_slots, free_count;
    uint64_t *answers; /* [workers] sent to each so far */
};

struct server_rig {
    struct options options;
    struct job job;
    struct plan plan;
    const struct rig_payloads *payloads;
    struct rig_channel channel;
    struct shard shard;
    uint64_t *seq;    /* [workers] reports pushed */
    uint64_t reports; /* of all */
};

void rig_payloads_open(struct rig_payloads *payloads, uint64_t sets, uint64_t blocks);
void rig_payloads_close(struct rig_payloads *payloads);

/* Blocks of 2^18 values, AdamW, --push int8, --pull bf16; the first weights are there. */
void server_rig_open(struct server_rig *rig, const char *mode, uint32_t workers,
                     const struct rig_payloads *payloads);
void server_rig_close(struct server_rig *rig);

/* Has the worker got the answers to all its reports? */
bool server_rig_may_push(const struct server_rig *rig, uint32_t rank);

/* A report of the worker, and in rounds of all the verdict where it is the last. Returns the
 * shard's processor seconds. */
double server_rig_report(struct server_rig *rig, uint32_t rank);

#endif
