/* coordinator.h - the one who gathers the job: joins, agreement, leases, the vote, the end.
 *
 * It runs in the control thread of the first server, which is a member like any other and dials it.
 * Phases, each left when all peers have said that they are there (messages: proto/control.proto):
 *   GATHERING -> ASSIGNED -> PLANNED -> STARTED -> RUNNING -> DRAINED -> ENDED
 * While gathering, a peer that goes away only makes room; later the loss of a peer ends the job,
 * and everyone is told whose loss. Two different given values of an AGREED option end it, too, with
 * the diff on both sides; once the job has started they only turn the newcomer away.
 * A state machine without threads or waits; one thread owns it.
 */
#ifndef RUBATO_SERVER_COORDINATOR_H
#define RUBATO_SERVER_COORDINATOR_H

#include "base/random.h"
#include "proto/job.h"
#include "proto/message.h"
#include "server/membership.h"
#include "server/vote.h"
#include "transport/control.h"

enum coordinator_phase {
    COORDINATOR_GATHERING,
    COORDINATOR_ASSIGNED, /* Assign is out, waiting for Ready */
    COORDINATOR_PLANNED,  /* Tensors are out, waiting for Armed */
    COORDINATOR_STARTED,  /* Start is out, waiting for Connected */
    COORDINATOR_RUNNING,  /* Go is out */
    COORDINATOR_DRAINED,  /* all workers are done; worker 0 saves */
    COORDINATOR_ENDED
};

#define COORDINATOR_NEWCOMERS_MAX 512

/* A connection that has not joined yet. */
struct newcomer {
    uint32_t connection;
    int64_t since_ns;
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
    int exit_code; /* ENDED */
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

/* When coordinator_poll() next has something to do by the clock. */
int64_t coordinator_deadline_ns(const struct coordinator *coordinator);

/* Ends the job for everyone with this reason ("" for a finished job) and exit code. */
void coordinator_end(struct coordinator *coordinator, const char *reason, int exit_code);

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

/* For coordinator_start.c: one message to one connection or to all peers (of a role; 0 for all). */
void coordinator_send(struct coordinator *coordinator, uint32_t connection,
                      const Rubato__Message *message);
void coordinator_send_all(struct coordinator *coordinator, unsigned roles,
                          const Rubato__Message *message);

#endif
