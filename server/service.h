/* service.h - a server process as a member of a job: its shards, and the messages between them and
 * the coordinator.
 *
 * The control thread owns the service and polls it. Each shard runs in a thread of its own
 * (shard_thread.h), or is polled here when `threads` is false (the simulator). To a shard the
 * service speaks by two rings only.
 */
#ifndef RUBATO_SERVER_SERVICE_H
#define RUBATO_SERVER_SERVICE_H

#include "server/shard.h"
#include "server/shard_thread.h"
#include "transport/member.h"

/* Opens a data channel for one shard. */
typedef enum status service_open_fn(void *context, const struct channel_config *config,
                                    struct channel **channel);

struct service_config {
    struct member_config member;
    service_open_fn *open_channel;
    void *context; /* of open_channel */
    bool threads;
    const struct wake *wake; /* of the control thread: shards ring it; NULL without threads */
};

/* What the server knows of a worker, for the lines at the end. */
struct service_worker {
    char name[112];  /* "worker 1 (host:pid)" */
    int64_t gone_ns; /* when it left; 0: it did not */
};

struct service {
    struct service_config config;
    struct member member;
    const struct job *job; /* the member's options' */
    struct plan plan;
    bool planned;
    struct channel **channels; /* [shards], until their shard takes them */
    struct shard *shards;      /* [shards] */
    struct shard_thread *threads;
    uint32_t shard_count;              /* of this process */
    struct service_worker *workers;    /* [job.workers], from Start; */
    struct channel_address *addresses; /* likewise */
    char mode[OPTION_TEXT_MAX];        /* that holds now */
    uint32_t changed;                  /* shards that have taken the new one */
    int64_t started_ns, polled_ns;     /* Go; the last poll */
    uint32_t running;                  /* shards that were initialised */
};

/* MEMORY. */
enum status service_init(struct service *service, const struct service_config *config,
                         int64_t now_ns) WARN_UNUSED;

/* Stops the shards and frees all. */
void service_free(struct service *service);

/* Does what can be done now; true when something was. */
bool service_poll(struct service *service, int64_t now_ns);

int64_t service_deadline_ns(const struct service *service);

#endif
