/* coordinator_rig.h - one struct coordinator on the simulated network, and peers made by hand.
 *
 * A side is a control connection to the coordinator over which the test says what it likes; what
 * comes back is counted by kind, and the last of each kind kept. Virtual time; packets take 1 ms.
 */
#ifndef RUBATO_TESTS_COORDINATOR_RIG_H
#define RUBATO_TESTS_COORDINATOR_RIG_H

#include "base/clock.h"
#include "server/coordinator.h"
#include "transport/loop.h"

enum { SIDES = 8 };

struct side {
    struct control *control;
    uint32_t connection;
    bool opened, closed;
    uint32_t got[32]; /* by body case */
    /* Assign */
    uint64_t job, epoch, session, first_shard, shard_count;
    uint32_t index;
    char lr[64], push[64]; /* of the agreed options */
    /* End, Waiting, Verdict, Beat, Tensors, Start */
    char reason[8192], missing[512];
    uint32_t exit_code;
    struct vote_verdict verdict;
    uint64_t beat_tokens, tensors;
    double beat_speed;
    uint32_t beat_workers;
    /* Close ("round: ranks"), Drop ("rank seq"), Gone, Drained, Change ("stage step mode by") */
    char close[64], drop[64], change[512];
    uint32_t gone, saver;
    uint64_t drained_tokens;
    char start[512]; /* "name address session, " of shards; the same of workers */
};

struct rig {
    struct loop *loop;
    struct control *listening;
    struct job job; /* of the coordinator's own process */
    struct options options;
    struct coordinator coordinator;
    struct side sides[SIDES];
    int64_t now_ns;
    struct message_scratch scratch;
    bool beating; /* sides that are not closed beat twice a second */
};

/* A coordinator whose user gave these options: "name=value name=value". */
void rig_open(struct rig *rig, const char *own);
void rig_close(struct rig *rig);

/* Time passes, in steps of 1 or 10 ms. */
void rig_run(struct rig *rig, int64_t ns);

/* Enough for a message and its answer. */
void rig_settle(struct rig *rig);

/* ---- what a side says, and then rig_settle() ---- */

void side_dial(struct rig *rig, int side);
void side_say(struct rig *rig, int side, const Rubato__Message *message);

#define SIDE_SAY(rig, side, CASE, field, body)                                                     \
    do {                                                                                           \
        Rubato__Message message_ = RUBATO__MESSAGE__INIT;                                          \
        message_.body_case = RUBATO__MESSAGE__BODY_##CASE;                                         \
        message_.field = (body);                                                                   \
        side_say(rig, side, &message_);                                                            \
    } while (0)

/* Dials, unless it has, and joins as "h<side>", process 100 + side, whose user gave "name=value
 * ...". */
void side_join(struct rig *rig, int side, enum job_role role, uint32_t shards, const char *given);

/* The digest is that of rig_tensors plus `wrong`; worker 0 sends them, too. */
extern const struct tensor rig_tensors[2];
void side_ready(struct rig *rig, int side, uint64_t wrong);

/* The digest is that of the plan plus `wrong`; addresses are "a<side>-0", "a<side>-1", ... */
void side_arm(struct rig *rig, int side, uint64_t wrong, uint32_t addresses);
void side_connected(struct rig *rig, int side);
void side_report(struct rig *rig, int side, const struct vote_report *report);
void side_done(struct rig *rig, int side, uint64_t tokens);
void side_saved(struct rig *rig, int side);
void side_beat(struct rig *rig, int side, uint64_t step, uint64_t tokens);
void side_leave(struct rig *rig, int side, const char *reason);

/* It leaves as planned, with exit code 0. */
void side_depart(struct rig *rig, int side, uint64_t tokens);

/* As Beat, with steps a second. */
void side_pace(struct rig *rig, int side, uint64_t step, double speed);

/* A server's word on report `seq` of a worker. */
void side_arrived(struct rig *rig, int side, uint64_t round, uint64_t shard, uint32_t rank,
                  uint64_t seq);
void side_change(struct rig *rig, int side, Rubato__Change__Stage stage, uint64_t step);

/* Dials, and asks for the mode. */
void side_set(struct rig *rig, int side, const char *mode);

/* These bytes, whatever they are. */
void side_send_raw(struct rig *rig, int side, const char *bytes, size_t count);

/* Its process dies; the number may be dialled with again. */
void side_drop(struct rig *rig, int side);

/* ---- a job of one server with two shards and two workers ---- */

/* The sides that have a part in it. */
enum { SERVER, WORKER_0, WORKER_1, PEERS, LATE = PEERS };

/* From the start until the coordinator is in this phase, at most RUNNING. `own` gives at least
 * --workers 2. */
void rig_open_at(struct rig *rig, const char *own, enum coordinator_phase phase);

/* Every peer has heard this kind of message so often. */
void rig_expect_all(const struct rig *rig, Rubato__Message__BodyCase kind, uint32_t times);

/* The side was told this end, once, and its connection closed. */
void side_expect_end(const struct rig *rig, int side, uint32_t exit_code, const char *reason);

/* So was every peer but `except` (-1: none), and the coordinator says the same. */
void rig_expect_end(const struct rig *rig, int except, uint32_t exit_code, const char *reason);

#endif
