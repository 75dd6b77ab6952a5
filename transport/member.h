/* member.h - a process's membership in a job: dial, join, heartbeats, leave.
 *
 * Servers and workers both are members; the coordinator is the other side (server/coordinator.h).
 * The member dials --join until the join deadline (back-off 0.2 s doubling to one lease, with
 * jitter), sends its Join, logs whom the coordinator waits for (first line within 2 s, then every
 * 10 s), and keeps the lease: once assigned it sends a Beat every lease / 10, and a coordinator
 * that is silent for a lease is lost. The join deadline covers everything until Go. A connection
 * that ends before Assign is dialled again. Messages that the member does not handle itself are
 * handed to the owner by member_poll().
 * A state machine without threads or waits: the owner polls until NULL, then sleeps on the
 * control's wait_fd until member_deadline_ns(). Nothing is allocated after member_init().
 * One thread owns it.
 */
#ifndef RUBATO_TRANSPORT_MEMBER_H
#define RUBATO_TRANSPORT_MEMBER_H

#include "base/random.h"
#include "proto/job.h"
#include "proto/message.h"
#include "transport/control.h"

#include <stdbool.h>

struct member_config {
    struct control *control; /* owned by the caller */
    struct options *options; /* the process's, of a struct job; adopts the job's values on Assign */
    enum job_role role;
    uint32_t shards;  /* servers: shard threads here */
    const char *host; /* where to dial; both outlive the member */
    const char *port;
    uint64_t seed; /* of the back-off's jitter */
    bool
        patient; /* waits for the job without a deadline of its own, whatever --join-timeout says */
};

enum member_state {
    MEMBER_DIALING,
    MEMBER_JOINING, /* connected, Join sent, waiting for Assign */
    MEMBER_ACTIVE,  /* assigned */
    MEMBER_ENDED    /* exit_code and reason say how */
};

struct member {
    struct member_config config;
    enum member_state state;
    uint32_t connection; /* UINT32_MAX for none */
    bool going;          /* Go was received: the join deadline no longer counts */
    int64_t started_ns, dial_at_ns, heard_ns, beat_at_ns, nag_at_ns;
    int64_t polled_ns; /* the last member_poll() */
    int64_t backoff_ns;
    struct random_stream jitter;
    char missing[512]; /* what is waited for, for the nagging line */
    char failure[256]; /* why the last dial failed */
    /* From Assign. */
    uint64_t job, epoch, session;
    uint32_t index;
    uint64_t first_shard, shard_count;
    /* What the Beats say: of this process, set by the owner; of the whole job, by the coordinator.
     * speed: steps a second, 0: not known. */
    uint64_t step, tokens, job_tokens;
    double speed, job_speed;
    uint32_t job_workers; /* that are left; 0: not known yet */
    /* MEMBER_ENDED. */
    int exit_code;
    char reason[512]; /* one line a problem, parted by newlines */
    struct message_scratch scratch;
    uint8_t *packed; /* [MESSAGE_MAX] */
};

/* MEMORY, logged. */
enum status member_init(struct member *member, const struct member_config *config,
                        int64_t now_ns) WARN_UNUSED;
void member_free(struct member *member);

/* Progress. Returns the next message for the owner (Assign, after it was adopted; Tensors, Start,
 * Go, Verdict, Close, Drop, Gone, Change, Drained), or NULL when there is none now; it lives until
 * the next call. How the membership ended is logged once, here. */
const Rubato__Message *member_poll(struct member *member, int64_t now_ns);

/* When member_poll() next has something to do by the clock; INT64_MAX: never. */
int64_t member_deadline_ns(const struct member *member);

/* Sends a message to the coordinator. PEER_LOST when it is gone; AGAIN when it does not read;
 * INVALID when the message is too long. */
enum status member_send(struct member *member, const Rubato__Message *message) WARN_UNUSED;

/* Says good-bye (reason, own exit code; the others end with 69) and moves to MEMBER_ENDED. */
void member_leave(struct member *member, const char *reason, int exit_code);

#endif
