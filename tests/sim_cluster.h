/* sim_cluster.h - a whole job in one thread and in virtual time, from one seed.
 *
 * The real coordinator, servers, sessions and trainers over the simulated network
 * (transport/loop.h). Each trainer's step takes a random virtual time, so that workers run at
 * different paces; a step that starts before all its weights are there (worker/gate.h) waits while
 * the others are polled. Workers may leave, or be cut off (loop_cut), and a tool may change the
 * mode. A failing case is its seed.
 */
#ifndef RUBATO_TESTS_SIM_CLUSTER_H
#define RUBATO_TESTS_SIM_CLUSTER_H

#include "server/coordinator.h"
#include "server/service.h"
#include "transport/loop.h"
#include "worker/train.h"

#define SIM_PROCESSES_MAX 8
#define SIM_LIMIT_NS      (INT64_C(3600) * 1000000000) /* virtual; a longer job is a hang */

struct sim_config {
    uint64_t seed;
    uint32_t servers, shards, workers; /* shards: of each server */
    const char *options;               /* AGREED ones as "name=value name=value" */
    struct loop_faults faults;
    int64_t step_max_ns;                /* a worker's step takes up to this, drawn a step */
    int64_t slow_worker_ns;             /* more for worker process 0 */
    int64_t step_ns[SIM_PROCESSES_MAX]; /* more for each worker process */
    const char *worker_options[SIM_PROCESSES_MAX]; /* of worker processes, likewise; or NULL */
    const struct data *data;
    void (*first_weights)(const struct trainer *trainer, float *weights);
    void (*read_batch)(void *context, uint64_t sequence, int64_t B, int32_t *tokens,
                       int32_t *targets);
    void (*loss)(void *context, int64_t step, float loss); /* NULL, or told every worker's */
    void *loss_contexts[SIM_PROCESSES_MAX];                /* of worker processes */
    float *weights;                                        /* NULL, or room for the final weights */
};

/* `rubato set`: dials, says its word, waits for the answer. */
struct sim_tool {
    struct control *control; /* NULL: there is none */
    uint32_t connection;
    const char *mode;
    bool done;
    uint32_t exit_code;
    char reason[256];
};

struct sim;

/* One process: options of its own, and what its role runs. */
struct sim_process {
    struct sim *sim;
    uint32_t index;
    struct job job;
    struct options options;
    struct control *control;
    struct service service;
    struct session session;
    struct trainer trainer;
    int64_t busy_until_ns; /* a trainer that computes */
    bool waiting;          /* a trainer that waits in the middle of a step */
};

struct sim {
    struct sim_config config;
    struct loop *loop;
    struct random_stream random;
    struct control *listening;
    struct coordinator coordinator;
    struct sim_process servers[SIM_PROCESSES_MAX];
    struct sim_process workers[SIM_PROCESSES_MAX];
    struct sim_tool tool;
    uint64_t awaits; /* how often a trainer waited so */
};

/* The node of a process in the network: servers first, then workers; the coordinator is with server
 * 0. */
uint32_t sim_server_node(uint32_t server);
uint32_t sim_worker_node(const struct sim *sim, uint32_t worker);

/* Sets the job up; ends the process if it cannot. */
void sim_open(struct sim *sim, const struct sim_config *config);
void sim_close(struct sim *sim);

/* Everyone does what can be done now; the clock moves if nobody could. True until the job has ended
 * for all that live. */
bool sim_step(struct sim *sim);

/* sim_step() until the end. */
void sim_run(struct sim *sim);

/* From now on a tool asks for this mode (a constant); tool.done and what follows say what came of
 * it. Once a job. */
void sim_set(struct sim *sim, const char *mode);

/* Pushes that had their turn, over all shards; duplicates likewise. */
struct shard_counters sim_counters(const struct sim *sim);

#endif
