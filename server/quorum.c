#include "server/quorum.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define LAG_MAX_NS INT64_C(10000000000)
#define NO_ARRIVAL INT64_MIN

enum word { WORD_NONE, WORD_HELD, WORD_LATE };

void quorum_init(struct quorum *quorum, const struct quorum_config *config) {
    *quorum = (struct quorum){.config = *config,
                              .round = 1,
                              .living = config->workers,
                              .first_ns = NO_ARRIVAL,
                              .deadline_ns = INT64_MAX,
                              .lag_capacity = QUORUM_LAGS_A_WORKER * config->workers};
    ASSERT(config->quorum >= 1 && config->voters >= 1);
    quorum->workers = memory_zeroed(config->workers, sizeof *quorum->workers);
    quorum->said = memory_zeroed(config->workers, (size_t)config->shards);
    quorum->lags = memory_zeroed(quorum->lag_capacity, sizeof(int64_t));
    quorum->sorted = memory_zeroed(quorum->lag_capacity, sizeof(int64_t));
    for (uint32_t i = 0; i < QUORUM_ROUNDS_KEPT; i++) {
        quorum->firsts[i] = NO_ARRIVAL;
    }
}

void quorum_free(struct quorum *quorum) {
    free(quorum->workers);
    free(quorum->said);
    free(quorum->lags);
    free(quorum->sorted);
    *quorum = (struct quorum){0};
}

/* ---- lags ---- */

static int compare(const void *left, const void *right) {
    const int64_t *a = left;
    const int64_t *b = right;
    return (*a > *b) - (*a < *b);
}

/* The lower one of the two in the middle where there are two. */
static int64_t median(int64_t *values, uint32_t count) {
    qsort(values, count, sizeof *values, compare);
    return values[(count - 1) / 2];
}

int64_t quorum_spread_ns(int64_t *lags, uint32_t count) {
    if (count == 0) {
        return CLOCK_MS;
    }
    int64_t middle = median(lags, count);
    for (uint32_t i = 0; i < count; i++) {
        lags[i] = lags[i] > middle ? lags[i] - middle : middle - lags[i];
    }
    int64_t spread_ns = middle + 4 * median(lags, count);
    return spread_ns > CLOCK_MS ? spread_ns : CLOCK_MS;
}

static void note_lag(struct quorum *quorum, int64_t lag_ns) {
    lag_ns = lag_ns < 0 ? 0 : lag_ns;
    quorum->lags[quorum->lag_next] = lag_ns < LAG_MAX_NS ? lag_ns : LAG_MAX_NS;
    quorum->lag_next = (quorum->lag_next + 1) % quorum->lag_capacity;
    quorum->lag_count += quorum->lag_count < quorum->lag_capacity ? 1 : 0;
}

/* Of a report that missed `round`, which is closed. */
static void note_late(struct quorum *quorum, uint64_t round, int64_t now_ns) {
    bool kept = round >= 1 && quorum->round - round <= QUORUM_ROUNDS_KEPT;
    int64_t first_ns = kept ? quorum->firsts[round % QUORUM_ROUNDS_KEPT] : NO_ARRIVAL;
    note_lag(quorum, first_ns == NO_ARRIVAL ? LAG_MAX_NS : now_ns - first_ns);
}

/* ---- the open round ---- */

static uint32_t needed(const struct quorum *quorum) {
    return (int64_t)quorum->living < quorum->config.quorum ? quorum->living
                                                           : (uint32_t)quorum->config.quorum;
}

/* The quorum may be complete since now. */
static void settle(struct quorum *quorum, int64_t now_ns) {
    if (quorum->deadline_ns != INT64_MAX || quorum->arrived == 0 ||
        quorum->arrived < needed(quorum)) {
        return;
    }
    if (quorum->config.grace_ns != GRACE_AUTO) {
        quorum->deadline_ns = now_ns + quorum->config.grace_ns;
        return;
    }
    memcpy(quorum->sorted, quorum->lags, quorum->lag_count * sizeof(int64_t));
    int64_t over_ns = quorum->first_ns + quorum_spread_ns(quorum->sorted, quorum->lag_count);
    quorum->deadline_ns = over_ns > now_ns ? over_ns : now_ns;
}

static uint8_t *words_of(struct quorum *quorum, uint32_t rank) {
    return quorum->said + (size_t)rank * (size_t)quorum->config.shards;
}

static void forget(struct quorum *quorum, uint32_t rank) {
    struct quorum_worker *worker = &quorum->workers[rank];
    memset(words_of(quorum, rank), WORD_NONE, (size_t)quorum->config.shards);
    worker->held = worker->late = 0;
}

/* All voters have spoken of the worker's report, for some of which it came too late. */
static enum status bury(struct quorum *quorum, const struct quorum_arrival *arrival,
                        int64_t now_ns) {
    bool held_somewhere = quorum->workers[arrival->rank].held > 0;
    if (arrival->round < quorum->round) {
        note_late(quorum, arrival->round, now_ns);
    }
    quorum->workers[arrival->rank].seq++; /* all is said of this one */
    forget(quorum, arrival->rank);
    return held_somewhere ? STATUS_AGAIN : STATUS_OK;
}

static bool known(const struct quorum *quorum, const struct quorum_arrival *arrival) {
    return arrival->rank < quorum->config.workers && arrival->shard < quorum->config.shards &&
           arrival->round <= quorum->round && arrival->round > 0;
}

enum status quorum_arrive(struct quorum *quorum, const struct quorum_arrival *arrival,
                          int64_t now_ns) {
    if (!known(quorum, arrival)) {
        return STATUS_MISMATCH;
    }
    struct quorum_worker *worker = &quorum->workers[arrival->rank];
    bool late = arrival->round < quorum->round;
    if (worker->gone || arrival->seq < worker->seq || (late && quorum->config.late_joins)) {
        return STATUS_STALE;
    }
    if (arrival->seq > worker->seq) {
        forget(quorum, arrival->rank);
        worker->seq = arrival->seq;
    }
    uint8_t *word = &words_of(quorum, arrival->rank)[arrival->shard];
    if (*word != WORD_NONE) {
        return STATUS_STALE;
    }
    *word = late ? WORD_LATE : WORD_HELD;
    worker->late += late ? 1 : 0;
    worker->held += late ? 0 : 1;
    if (worker->held + worker->late < quorum->config.voters) {
        return STATUS_OK;
    }
    if (worker->late > 0) {
        return bury(quorum, arrival, now_ns);
    }
    quorum->arrived++;
    quorum->first_ns = quorum->first_ns == NO_ARRIVAL ? now_ns : quorum->first_ns;
    note_lag(quorum, now_ns - quorum->first_ns);
    settle(quorum, now_ns);
    return STATUS_OK;
}

void quorum_leave(struct quorum *quorum, uint32_t rank, int64_t now_ns) {
    struct quorum_worker *worker = &quorum->workers[rank];
    if (worker->gone) {
        return;
    }
    bool had_arrived = worker->held == quorum->config.voters;
    worker->gone = true;
    quorum->living--;
    quorum->arrived -= had_arrived ? 1 : 0;
    forget(quorum, rank);
    if (quorum->arrived < needed(quorum)) {
        quorum->deadline_ns = INT64_MAX;
    }
    settle(quorum, now_ns);
}

bool quorum_due(const struct quorum *quorum, int64_t now_ns) {
    if (quorum->deadline_ns == INT64_MAX) {
        return false;
    }
    return quorum->arrived == quorum->living || now_ns >= quorum->deadline_ns;
}

int64_t quorum_deadline_ns(const struct quorum *quorum) {
    return quorum->deadline_ns;
}

/* What shards hold of a report that did not make it: dropped by them when the round is decided, or
 * said again for the next one. */
static void miss(struct quorum *quorum, uint32_t rank) {
    struct quorum_worker *worker = &quorum->workers[rank];
    uint8_t *words = words_of(quorum, rank);
    if (quorum->config.late_joins) {
        forget(quorum, rank);
        return;
    }
    for (uint64_t shard = 0; shard < quorum->config.shards && worker->held > 0; shard++) {
        if (words[shard] == WORD_HELD) {
            words[shard] = WORD_LATE;
            worker->held--;
            worker->late++;
        }
    }
}

uint32_t quorum_close(struct quorum *quorum, uint32_t *ranks) {
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < quorum->config.workers; rank++) {
        if (quorum->workers[rank].gone) {
            continue;
        }
        if (quorum->workers[rank].held == quorum->config.voters) {
            ranks[count++] = rank;
            /* Shards have said all they will say of this report. */
            quorum->workers[rank].seq++;
            forget(quorum, rank);
        } else {
            miss(quorum, rank);
        }
    }
    ASSERT_OP(count, ==, quorum->arrived);
    quorum->firsts[quorum->round % QUORUM_ROUNDS_KEPT] = quorum->first_ns;
    quorum->round++;
    quorum->arrived = 0;
    quorum->first_ns = NO_ARRIVAL;
    quorum->deadline_ns = INT64_MAX;
    return count;
}
