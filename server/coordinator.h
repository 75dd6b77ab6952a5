/* coordinator.h - the one who gathers the job: joins, agreement, leases, the vote, the end.
 *
 * It runs in the control thread of the first server, which is a member like any other and dials it.
 * Phases, each left when all peers have said that they are there (messages: proto/control.proto):
 *   GATHERING -> ASSIGNED -> PLANNED -> STARTED -> RUNNING -> DRAINED -> ENDED
 * While gathering, a peer that goes away only makes room; later the loss of a server ends the job,
 * and everyone is told whose loss. While the job runs, a worker may leave (Leave with exit code 0),
 * or be lost where nothing needs all workers and the quorum is left: then the servers hear that it
 * has gone. Else a worker's loss ends the job, too; worker 0's always does before its first weights
 * are known to be in all shards, since the others would wait for them for ever. When the one that
 * saves the run is lost, the next lowest rank saves. Two different given values of an AGREED option
 * end it with the diff on both sides; once the job has started they only turn the newcomer away.
 * Rounds (coordinator_run.c): with a quorum, shards say who has arrived and the coordinator closes
 * the round (quorum.h); then, in any round, the vote. A change of mode (coordinator_change.c): see
 * proto/control.proto.
 * A state machine without threads or waits; one thread owns it.
 */
#ifndef RUBATO_SERVER_COORDINATOR_H
#define RUBATO_SERVER_COORDINATOR_H

#include "base/random.h"
#include "proto/discipline.h"
#include "proto/job.h"
#include "proto/message.h"
#include "server/membership.h"
#include "server/quorum.h"
#include "server/shard_order.h"
#include "server/vote.h"
#include "transport/control.h"

enum coordinator_phase {
    COORDINATOR_GATHERING,
    COORDINATOR_ASSIGNED, /* Assign is out, waiting for Ready */
    COORDINATOR_PLANNED,  /* Tensors are out, waiting for Armed */
    COORDINATOR_STARTED,  /* Start is out, waiting for Connected */
    COORDINATOR_RUNNING,  /* Go is out */
    COORDINATOR_DRAINED,  /* all workers are done; the lowest rank saves */
    COORDINATOR_ENDED
};

/* How a member goes. */
enum departure {
    DEPARTURE_LOST,    /* without a word */
    DEPARTURE_FAILED,  /* Leave with an error */
    DEPARTURE_PLANNED, /* Leave with exit code 0: every answer that it waited for has come */
};

#define COORDINATOR_NEWCOMERS_MAX 512

/* A connection that has not joined yet. */
struct newcomer {
    uint32_t connection;
    int64_t since_ns;
    char from[64]; /* "ip:port" */
};

/* A change of mode that is under way. */
enum change_stage {
    CHANGE_NONE,
    CHANGE_PROMISES, /* waiting for the workers' promises */
    CHANGE_HOLDS,    /* waiting until all hold */
    CHANGE_APPLIES   /* waiting for the servers */
};
struct change {
    enum change_stage stage;
    char mode[OPTION_TEXT_MAX];
    char by[64];
    struct discipline discipline;
    bool asked;          /* the tool waits for its answer at */
    uint32_t connection; /* this one */
    uint64_t step;       /* where the workers hold */
};

struct coordinator_config {
    struct control *control;   /* open and listening; the caller's */
    const struct options *own; /* of the coordinator's process: what its user gave counts first */
    uint64_t seed;             /* of job and session ids; random in a real job */
    int64_t join_timeout_ns;   /* 0: from the job's options; INT64_MAX: none (--stay) */
};

struct coordinator {
    struct coordinator_config config;
    enum coordinator_phase phase;
    struct job job; /* as merged so far; filled by `options` */
    struct options options;
    struct job_agreement agreement;
    struct membership membership;
    struct newcomer newcomers[COORDINATOR_NEWCOMERS_MAX];
    uint32_t newcomer_count;
    struct random_stream random;
    uint64_t job_id, epoch;
    int64_t started_ns, beat_at_ns, nag_at_ns;
    struct tensor *tensors; /* worker 0's */
    uint64_t tensor_count;
    struct plan plan;
    struct vote vote;
    struct discipline discipline; /* that holds now, but for --sync-warmup; from Assign on */
    bool has_quorum;              /* rounds are closed by: */
    struct quorum quorum;
    uint32_t *ranks;          /* [workers] of the round that was closed last */
    uint32_t closed_count;    /* of them */
    bool weights_spread;      /* a worker has made a step: the first weights are in all shards */
    uint32_t saver;           /* DRAINED: the rank that saves */
    uint64_t departed_tokens; /* of workers that have gone */
    struct change change;
    int64_t straggler_at_ns; /* when the slowest is named next */
    int exit_code;           /* ENDED */
    char reason[512];
    struct message_scratch scratch;
    uint8_t *packed; /* [MESSAGE_MAX] */
    bool allocated;  /* plan and vote are there */
};

/* MEMORY, logged. */
enum status coordinator_init(struct coordinator *coordinator,
                             const struct coordinator_config *config, int64_t now_ns) WARN_UNUSED;
void coordinator_free(struct coordinator *coordinator);

/* Does what can be done now. */
void coordinator_poll(struct coordinator *coordinator, int64_t now_ns);

/* When coordinator_poll() next has something to do by the clock; INT64_MAX: never, it has ended. */
int64_t coordinator_deadline_ns(const struct coordinator *coordinator);

/* Ends the job for everyone with this reason ("" for a finished job) and exit code. */
void coordinator_end(struct coordinator *coordinator, const char *reason, int exit_code);

/* Workers that are left. */
uint32_t coordinator_living(const struct coordinator *coordinator);

/* What all workers have read, as far as they have said, those that left among them. */
uint64_t coordinator_tokens(const struct coordinator *coordinator);

/* coordinator_run.c: the running job. */

/* A member has gone; `how` completes "worker 1 (host:pid) ...". */
void coordinator_lose(struct coordinator *coordinator, struct peer *peer, const char *how,
                      enum departure departure, int64_t now_ns);
void coordinator_take_arrived(struct coordinator *coordinator, const struct peer *peer,
                              const Rubato__Arrived *arrived, int64_t now_ns);
void coordinator_take_report(struct coordinator *coordinator, const struct peer *peer,
                             const Rubato__Report *report);
void coordinator_take_done(struct coordinator *coordinator, struct peer *peer,
                           const Rubato__Done *done);
void coordinator_take_saved(struct coordinator *coordinator, const struct peer *peer);

/* The quorum of the plan that was just made, if the mode has one. */
void coordinator_open_rounds(struct coordinator *coordinator);

/* Closes the open round of a quorum when it is due. */
void coordinator_close_round(struct coordinator *coordinator, int64_t now_ns);

/* Logs the slowest worker, if it is much slower than the others: now and then where they wait for
 * it, and once when all are done. */
void coordinator_name_straggler(const struct coordinator *coordinator);

/* coordinator_change.c: another mode for the running job. */

void coordinator_take_set(struct coordinator *coordinator, uint32_t connection, const char *from,
                          const Rubato__Set *set);
void coordinator_take_change(struct coordinator *coordinator, struct peer *peer,
                             const Rubato__Change *change);

/* The change goes on when all that are left have come so far. */
void coordinator_go_on_changing(struct coordinator *coordinator);

/* The job ends: so does the change. */
void coordinator_abandon_change(struct coordinator *coordinator);

/* coordinator_start.c: the messages of the way from Join to Go. */

/* The job's options anew, from what the users of the coordinator and of all peers gave. */
void coordinator_settle(struct coordinator *coordinator);

void coordinator_take_join(struct coordinator *coordinator, uint32_t connection,
                           const Rubato__Join *join, int64_t now_ns);
void coordinator_take_ready(struct coordinator *coordinator, struct peer *peer,
                            const Rubato__Ready *ready);
void coordinator_take_armed(struct coordinator *coordinator, struct peer *peer,
                            const Rubato__Armed *armed);
void coordinator_take_connected(struct coordinator *coordinator, struct peer *peer);

/* Says End to a connection that is no member, and hangs up. */
void coordinator_refuse(struct coordinator *coordinator, uint32_t connection, const char *reason,
                        int exit_code);

/* For the other files of the coordinator: one message to one connection, or to all peers (of these
 * roles; 0 for all). */
void coordinator_send(struct coordinator *coordinator, uint32_t connection,
                      const Rubato__Message *message);
void coordinator_send_all(struct coordinator *coordinator, unsigned roles,
                          const Rubato__Message *message);

#endif
