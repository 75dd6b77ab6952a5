#include "worker/model_team.h"

#include "base/assert.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct model_team {
    struct group *group;
    uint64_t tensor_count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *parts; /* [tensor_count] */
    uint64_t gates; /* that member 0 has passed */
    bool failed;
};

_Static_assert(GROUP_MAX <= UINT8_MAX, "parts are counted in bytes");

struct model_team *team_open(struct group *group, uint64_t tensor_count) {
    struct model_team *team = memory_zeroed(1, sizeof(*team));
    team->group = group;
    team->tensor_count = tensor_count;
    team->parts = memory_zeroed((size_t)tensor_count, sizeof(*team->parts));
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->changed, NULL);
    return team;
}

void team_close(struct model_team *team) {
    if (team == NULL) return;
    pthread_cond_destroy(&team->changed);
    pthread_mutex_destroy(&team->lock);
    free(team->parts);
    free(team);
}

struct group *team_group(const struct model_team *team) {
    return team->group;
}

int team_members(const struct model_team *team) {
    return team->group->count;
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

/* A member that is late ends the group in time, and then fails the pass. */
enum status team_wait_parts(struct model_team *team, uint64_t tensor) {
    enum status status;
    pthread_mutex_lock(&team->lock);
    while ((status = parts_status(team, tensor)) == STATUS_AGAIN)
        pthread_cond_wait(&team->changed, &team->lock);
    pthread_mutex_unlock(&team->lock);
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
