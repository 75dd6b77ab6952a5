/* session.h - a worker's communication: membership in the job, and exchange with the shards.
 *
 * The trainer (train.h) computes, the session talks; they speak by two rings, so that in a worker
 * process each has a thread (session_thread.h), while in the simulator both are polled on one.
 *   trainer -> session   READY (tensors), MEMORY (weights), PUSH, COMMIT, PULL, DONE, SAVED, LEAVE
 *   session -> trainer   ASSIGNED, PLANNED, SETTLED, DRAINED, ENDED
 * The weights belong to the session from each PUSH or PULL until SETTLED; a block's gradient from
 * its PUSH until then.
 */
#ifndef RUBATO_WORKER_SESSION_H
#define RUBATO_WORKER_SESSION_H

#include "base/ring.h"
#include "base/wake.h"
#include "transport/member.h"
#include "worker/exchange.h"

#include <stdatomic.h>

enum session_command_kind {
    SESSION_READY,  /* tensors, count: kept by the trainer for the session's life */
    SESSION_MEMORY, /* weights; PULL may follow */
    SESSION_PUSH,   /* block, seq, grad */
    SESSION_COMMIT, /* seq: every block of it was pushed; SETTLED follows */
    SESSION_PULL,   /* ask for every block, SETTLED follows; `first`: send my weights before */
    SESSION_DONE,   /* all steps are pushed and answered */
    SESSION_SAVED,  /* worker 0 has written the run's files */
    SESSION_LEAVE   /* reason, exit_code */
};

struct session_command {
    enum session_command_kind kind;
    const struct tensor *tensors;
    uint64_t count;
    float *weights;
    const float *grad;
    uint64_t block, seq;
    bool first;
    const char *reason; /* a constant */
    int exit_code;
};

enum session_event_kind {
    SESSION_ASSIGNED, /* the options hold the job's values; rank */
    SESSION_PLANNED,  /* plan: lives as long as the session */
    SESSION_SETTLED,  /* everything asked for is installed; counters */
    SESSION_DRAINED,  /* all workers are done */
    SESSION_ENDED     /* exit_code; no more events follow */
};

struct session_event {
    enum session_event_kind kind;
    uint32_t rank;
    const struct plan *plan;
    struct exchange_counters counters;
    int exit_code;
};

/* Opens a data channel. */
typedef enum status session_open_fn(void *context, const struct channel_config *config,
                                    struct channel **channel);

struct session_config {
    struct member_config member;
    session_open_fn *open_channel;
    void *context;
    const struct wake *trainer; /* rung after each event; NULL without threads */
};

struct session {
    struct session_config config;
    struct member member;
    const struct job *job; /* the member's options' */
    struct plan plan;
    struct channel *channel;
    struct exchange exchange;
    bool planned, connected, going, exchanging, ended;
    bool commits;  /* the mode applies each push by itself, on its commit */
    bool settling; /* the trainer waits for SETTLED */
    bool held;     /* `command` could not be carried out yet */
    struct session_command command;
    const struct tensor *tensors;
    uint64_t tensor_count;
    struct ring commands, events;
    /* Trainer -> session, for the Beats; session -> trainer. Any thread. */
    _Atomic uint64_t step, tokens, job_tokens;
    _Atomic bool over; /* the job has ended for this worker: long work may stop */
};

/* MEMORY. */
enum status session_init(struct session *session, const struct session_config *config,
                         int64_t now_ns) WARN_UNUSED;
void session_free(struct session *session);

/* Does what can be done now; true when something was. Session's thread. */
bool session_poll(struct session *session, int64_t now_ns);

int64_t session_deadline_ns(const struct session *session);

#endif
