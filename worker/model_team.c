#include "worker/model_team.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/owner.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct model_team {
    struct group *group;
    uint64_t tensor_count;
    int timeout_ms;
    uint8_t *owners;           /* [block_count] */
    struct team_piece *pieces; /* in order of place */
    uint64_t *first_piece;     /* [tensor_count] where each tensor's begin */
    uint64_t *piece_count;     /* [tensor_count] */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *parts; /* [tensor_count] */
    uint64_t gates; /* that member 0 has passed */
    bool failed;
};

_Static_assert(GROUP_MAX <= UINT8_MAX, "parts are counted in bytes");

static uint64_t end_of(const struct plan *plan, uint64_t tensor) {
    return plan->offsets[tensor] + plan_values(plan, tensor);
}

/* Tensors in order of place, and blocks, both fill the flat vector. */
static void cut_pieces(struct model_team *team, const struct plan *plan) {
    uint64_t count = 0, at = 0, block = 0;
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        uint64_t tensor = plan->pack_order[i], end = end_of(plan, tensor);
        team->first_piece[tensor] = count;
        while (at < end) {
            uint64_t block_end = plan->blocks[block].offset + plan->blocks[block].count;
            uint64_t to = block_end < end ? block_end : end;
            team->pieces[count++] =
                (struct team_piece){.at = at, .count = to - at, .owner = team->owners[block]};
            block += to == block_end ? 1 : 0;
            at = to;
        }
        team->piece_count[tensor] = count - team->first_piece[tensor];
    }
}

struct model_team *team_open(struct group *group, const struct plan *plan, int timeout_ms) {
    struct model_team *team = memory_zeroed(1, sizeof(*team));
    size_t tensors = (size_t)plan->tensor_count, blocks = (size_t)plan->block_count;
    pthread_condattr_t monotonic;
    team->group = group;
    team->tensor_count = plan->tensor_count;
    team->timeout_ms = timeout_ms;
    team->owners = memory_zeroed(blocks, sizeof(*team->owners));
    team->pieces = memory_zeroed(blocks + tensors, sizeof(*team->pieces));
    team->first_piece = memory_zeroed(tensors, sizeof(*team->first_piece));
    team->piece_count = memory_zeroed(tensors, sizeof(*team->piece_count));
    team->parts = memory_zeroed(tensors, sizeof(*team->parts));
    owner_assign(plan, group->count, team->owners);
    cut_pieces(team, plan);
    pthread_mutex_init(&team->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&team->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return team;
}

void team_close(struct model_team *team) {
    if (team == NULL) return;
    pthread_cond_destroy(&team->changed);
    pthread_mutex_destroy(&team->lock);
    free(team->owners);
    free(team->pieces);
    free(team->first_piece);
    free(team->piece_count);
    free(team->parts);
    free(team);
}

struct group *team_group(const struct model_team *team) {
    return team->group;
}

int team_members(const struct model_team *team) {
    return team->group->count;
}

int team_owner(const struct model_team *team, uint64_t block) {
    return team->owners[block];
}

uint64_t team_pieces(const struct model_team *team, uint64_t tensor,
                     const struct team_piece **pieces) {
    *pieces = team->pieces + team->first_piece[tensor];
    return team->piece_count[tensor];
}

uint64_t team_pieces_most(const struct model_team *team) {
    uint64_t most = 0;
    for (uint64_t tensor = 0; tensor < team->tensor_count; tensor++)
        most = team->piece_count[tensor] > most ? team->piece_count[tensor] : most;
    return most;
}

void team_begin(struct model_team *team) {
    pthread_mutex_lock(&team->lock);
    memset(team->parts, 0, (size_t)team->tensor_count);
    team->gates = 0;
    team->failed = false;
    pthread_mutex_unlock(&team->lock);
}

void team_fail(struct model_team *team) {
    pthread_mutex_lock(&team->lock);
    team->failed = true;
    pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->lock);
}

void team_part(struct model_team *team, uint64_t tensor) {
    pthread_mutex_lock(&team->lock);
    ASSERT_OP(team->parts[tensor], <, team->group->count);
    if (++team->parts[tensor] == team->group->count) pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->lock);
}

/* With the lock. */
static enum status parts_status(const struct model_team *team, uint64_t tensor) {
    if (team->parts[tensor] == team->group->count) return STATUS_OK;
    return team->failed ? STATUS_PEER_LOST : STATUS_AGAIN;
}

enum status team_parts(struct model_team *team, uint64_t tensor) {
    pthread_mutex_lock(&team->lock);
    enum status status = parts_status(team, tensor);
    pthread_mutex_unlock(&team->lock);
    return status;
}

enum status team_wait_parts(struct model_team *team, uint64_t tensor) {
    const int64_t end_ns = clock_now_ns() + team->timeout_ms * CLOCK_MS;
    const struct timespec end = {.tv_sec = (time_t)(end_ns / CLOCK_S),
                                 .tv_nsec = (long)(end_ns % CLOCK_S)};
    enum status status;
    pthread_mutex_lock(&team->lock);
    while ((status = parts_status(team, tensor)) == STATUS_AGAIN) {
        if (pthread_cond_timedwait(&team->changed, &team->lock, &end) != ETIMEDOUT) continue;
        status = parts_status(team, tensor);
        if (status == STATUS_AGAIN) status = STATUS_TIMEOUT;
        break;
    }
    int parts = team->parts[tensor];
    pthread_mutex_unlock(&team->lock);
    if (status == STATUS_TIMEOUT)
        log_error("%d of %d devices have not computed a gradient after %d ms that the others have",
                  team->group->count - parts, team->group->count, team->timeout_ms);
    return status;
}

void team_pass_gate(struct model_team *team) {
    pthread_mutex_lock(&team->lock);
    team->gates++;
    pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->lock);
}

bool team_follow_gate(struct model_team *team, uint64_t count) {
    pthread_mutex_lock(&team->lock);
    while (team->gates < count && !team->failed)
        pthread_cond_wait(&team->changed, &team->lock);
    bool passed = team->gates >= count;
    pthread_mutex_unlock(&team->lock);
    return passed;
}
