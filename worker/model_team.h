/* model_team.h - what the models of a node share while they make a pass together (node.h). For
 * worker/model*.c and node.c.
 *
 * Each model has some of the batch's sequences, and all the weights on its device. Weights come in
 * parts: each member takes its part of a tensor from the host, and the group gathers the rest. A
 * tensor's gradient is summed by the group in pieces, a block's at the block's owner (owner.h),
 * which brings it to the host, or keeps it to encode it. When all members have done their part in
 * that, member 0 announces the tensor.
 * Members 1.. follow member 0 past the gate (struct model_gate), which it alone may ask.
 * Functions may be called by any member's thread, except where they say so.
 */
#ifndef RUBATO_WORKER_MODEL_TEAM_H
#define RUBATO_WORKER_MODEL_TEAM_H

#include "base/status.h"
#include "kernels/group.h"
#include "proto/plan.h"

#include <stdbool.h>
#include <stdint.h>

struct model_team;

/* What a tensor and a block have in common. */
struct team_piece {
    uint64_t at, count; /* in the flat vector */
    int owner;          /* the block's: a rank */
};

/* Group and plan must outlive it; a member waits `timeout_ms` for the others. */
struct model_team *team_open(struct group *group, const struct plan *plan, int timeout_ms);
void team_close(struct model_team *team); /* harmless on NULL */

struct group *team_group(const struct model_team *team);
int team_members(const struct model_team *team);

/* Who has the block's sum. */
int team_owner(const struct model_team *team, uint64_t block);

/* The tensor's pieces, in order; at most team_pieces_most() of them. */
uint64_t team_pieces(const struct model_team *team, uint64_t tensor,
                     const struct team_piece **pieces);
uint64_t team_pieces_most(const struct model_team *team);

/* Before a pass, while no member is in one. */
void team_begin(struct model_team *team);

/* The pass will not be completed: all waits end. */
void team_fail(struct model_team *team);

/* A member has done its part for the tensor's gradient: its pieces are on the host or, if the
 * gradient stays, it has queued its sums. */
void team_part(struct model_team *team, uint64_t tensor);

/* Whether all have: OK, AGAIN; PEER_LOST: the pass has failed. team_wait_parts() waits; TIMEOUT,
 * logged: in vain. */
enum status team_parts(struct model_team *team, uint64_t tensor) WARN_UNUSED;
enum status team_wait_parts(struct model_team *team, uint64_t tensor) WARN_UNUSED;

/* Member 0 is past one more gate of the pass; another member waits until it is past `count`. False:
 * it will not be. */
void team_pass_gate(struct model_team *team);
bool team_follow_gate(struct model_team *team, uint64_t count);

#endif
