/* random.h - counter-based random numbers: Philox4x32-10.
 *
 * A number is a pure function of (key, counter), so that any process, thread or device that knows
 * the two gets the same bits, with no state to save. Streams are told apart by the key's second
 * word (enum random_purpose); the counter says which step, worker or value.
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 */
#ifndef RUBATO_BASE_RANDOM_H
#define RUBATO_BASE_RANDOM_H

#include <stdint.h>

/* What a number is for. Values are part of the reproducibility promise: append, never reorder. */
enum random_purpose {
    RANDOM_INIT_WEIGHTS = 1,
    RANDOM_DATA_ORDER = 2,
    RANDOM_SAMPLING = 3,
    RANDOM_CODEC = 4,
    RANDOM_SIMULATOR = 5,
    RANDOM_SESSION = 6,
    RANDOM_BACKOFF = 7,
    RANDOM_DROPOUT = 8
};

/* One block of four 32-bit numbers: key [2], counter [4] -> out [4]. Any thread. */
void random_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* A cursor over one stream, for code that wants one number after the other. */
struct random_stream {
    uint32_t key[2];
    uint32_t counter[4];
    uint32_t block[4];
    uint32_t used; /* numbers of `block` handed out, 0..4 */
};

/* Starts the stream (seed, purpose, lane) at its beginning; `lane` tells e.g. tensors apart. Key is
 * {seed low, purpose}, counter {block 0, 1, ..., seed high, lane low, lane high}, so that streams
 * never overlap; one has 2^34 - 4 numbers (ASSERT). A stream belongs to one thread. */
void random_open(struct random_stream *stream, uint64_t seed, enum random_purpose purpose,
                 uint64_t lane);

uint32_t random_u32(struct random_stream *stream);
uint64_t random_u64(struct random_stream *stream);

/* Uniform in [0, 1), 24 bits. */
float random_unit(struct random_stream *stream);

/* Normal with mean 0 and variance 1 (Box-Muller; two numbers of the stream a value). */
float random_normal(struct random_stream *stream);

/* Uniform in [0, bound), without bias; bound >= 1. */
uint64_t random_below(struct random_stream *stream, uint64_t bound);

#endif
