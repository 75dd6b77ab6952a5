/* session.h - a worker's communication: membership in the job, and exchange with the shards.
 *
 * The trainer (train.h) computes, the session talks; they speak by two rings, so that in a worker
 * process each has a thread (session_thread.h), while in the simulator both are polled on one.
 *   trainer -> session   READY (tensors), MEMORY (weights), PUSH, COMMIT, PULL, PROMISED, HELD,
 *                        DONE, SAVED, LEAVE
 *   session -> trainer   ASSIGNED, PLANNED, SETTLED, PROMISE, LIMIT, RESUME, DRAINED, ENDED
 * The weights that were given with MEMORY belong to the session from each PUSH or PULL until
 * SETTLED, those of one block until exchange_answered() tells; what is pushed from its PUSH until
 * then.
 */
#ifndef RUBATO_WORKER_SESSION_H
#define RUBATO_WORKER_SESSION_H

#include "base/ring.h"
#include "base/wake.h"
#include "transport/member.h"
#include "worker/exchange.h"

#include <stdatomic.h>

enum session_command_kind {
    SESSION_READY,       /* tensors, count: kept by the trainer for the session's life */
    SESSION_MEMORY,      /* weights, codecs: where answers are installed (struct exchange_config);
                          * devices: where pushes are encoded if that can be; PULL may follow */
    SESSION_PUSH,        /* report, block, values; with exchange_on_device() on the block's device,
                          * final behind `ready` */
    SESSION_COMMIT,      /* report: every block of it was pushed; SETTLED follows */
    SESSION_PULL,        /* ask for every block, SETTLED follows; `first`: send my weights before;
                          `exact`: as the shards have them, whatever --pull says */
    SESSION_PULL_BEHIND, /* ask for blocks that are behind the others; SETTLED follows */
    SESSION_PROMISED,    /* step that I shall not pass before I hear more */
    SESSION_HELD,        /* step: I am there and settled */
    SESSION_DONE,        /* all reports are made and answered */
    SESSION_SAVED,       /* the run's files are written */
    SESSION_LEAVE        /* reason, exit_code */
};

struct session_command {
    enum session_command_kind kind;
    const struct tensor *tensors;
    uint64_t count;
    float *weights;
    uint8_t *codecs;
    struct exchange_devices devices;
    const float *values;
    const struct device_event *ready;
    uint64_t block, step;
    struct exchange_report report;
    bool first, exact;
    const char *reason; /* a constant */
    int exit_code;
};

enum session_event_kind {
    SESSION_ASSIGNED, /* the options hold the job's values; rank */
    SESSION_PLANNED,  /* plan: lives as long as the session */
    SESSION_SETTLED,  /* everything asked for is installed; counters, versions */
    SESSION_PROMISE,  /* the mode is to change: which step will you not pass? PROMISED answers */
    SESSION_LIMIT,    /* step: go on to there, not further; HELD answers */
    SESSION_RESUME,   /* go on; the job's options hold the new mode */
    SESSION_DRAINED,  /* all workers are done; saver */
    SESSION_ENDED     /* exit_code; no more events follow */
};

struct session_event {
    enum session_event_kind kind;
    uint32_t rank;
    uint32_t saver; /* the rank that saves the run */
    uint64_t step;
    uint64_t version_least, version_most; /* among the blocks that change */
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
    const struct wake *trainer; /* rung after each event, and with --forward-overlap after blocks */
                                /* were installed; NULL without threads */
};

struct session {
    struct session_config config;
    struct member member;
    const struct job *job; /* the member's options' */
    struct plan plan;
    struct channel *channel;
    struct channel_address *addresses; /* [plan.shard_count] of the shards, from Start */
    struct exchange exchange;
    bool planned, connected, going, exchanging, drained, ended;
    bool settling; /* the trainer waits for SETTLED */
    bool held;     /* `command` could not be carried out yet */
    struct session_command command;
    const struct tensor *tensors;
    uint64_t tensor_count;
    struct ring commands, events;
    /* Trainer -> session, for the Beats; speed in steps a second. Any thread. */
    _Atomic uint64_t step, tokens;
    _Atomic double speed;
    /* Session -> trainer, from the coordinator's Beats. Any thread. */
    _Atomic uint64_t job_tokens;
    _Atomic double job_speed;
    _Atomic uint32_t job_workers; /* that are left; 0: not known yet */
    _Atomic bool leave;           /* asked to leave once the step under way is answered */
    _Atomic bool over;            /* the job has ended for this worker: long work may stop */
};

/* MEMORY. */
enum status session_init(struct session *session, const struct session_config *config,
                         int64_t now_ns) WARN_UNUSED;
void session_free(struct session *session);

/* Does what can be done now; true when something was. Session's thread. */
bool session_poll(struct session *session, int64_t now_ns);

/* Asks the trainer to leave the job when the step under way is answered. One that has made all its
 * reports stays: it owes nothing, and may be the one to save the run. False: it does not train
 * (yet, or any more), and must be ended otherwise. Session's thread. */
bool session_ask_to_leave(struct session *session);

int64_t session_deadline_ns(const struct session *session);

#endif
