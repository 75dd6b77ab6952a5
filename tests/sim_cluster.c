#include "tests/sim_cluster.h"

#include "base/log.h"
#include "kernels/threads.h"
#include "tests/test.h"

#include <inttypes.h>

#define SIM_HOST "10.0.0.1"
#define SIM_PORT "29600"

uint32_t sim_server_node(uint32_t server) {
    return server;
}

uint32_t sim_worker_node(const struct sim *sim, uint32_t worker) {
    return sim->config.servers + worker;
}

/* Context of open_channel(): the node whose channels it opens. */
struct sim_opener {
    struct sim *sim;
    uint32_t node;
};

static enum status open_channel(void *context, const struct channel_config *config,
                                struct channel **channel) {
    const struct sim_opener *opener = context;
    return loop_channel(opener->sim->loop, opener->node, config, channel);
}

/* Gives a process the AGREED options as if its user had. */
static void give(struct options *options, const char *text) {
    char copy[1024];
    char why[256];
    char *rest = NULL;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        CHECK(value != NULL);
        *value++ = '\0';
        int index = options_find(options, word);
        CHECK(index >= 0);
        CHECK(options_set(options, index, value, ORIGIN_FLAG, why, sizeof why) == STATUS_OK);
    }
}

static struct member_config member_of(struct sim *sim, struct sim_process *process,
                                      enum job_role role, uint32_t node) {
    options_init(&process->options, job_table, job_table_count, &process->job);
    CHECK(loop_control(sim->loop, node, &process->control) == STATUS_OK);
    return (struct member_config){.control = process->control,
                                  .options = &process->options,
                                  .role = role,
                                  .shards = sim->config.shards,
                                  .host = SIM_HOST,
                                  .port = SIM_PORT,
                                  .seed = sim->config.seed + node};
}

static void *opener(struct sim *sim, uint32_t node) {
    struct sim_opener *made = memory_zeroed(1, sizeof *made);
    *made = (struct sim_opener){.sim = sim, .node = node};
    return made;
}

static void open_server(struct sim *sim, uint32_t i) {
    struct sim_process *process = &sim->servers[i];
    struct service_config config = {.member =
                                        member_of(sim, process, JOB_SERVER, sim_server_node(i)),
                                    .open_channel = open_channel,
                                    .context = opener(sim, sim_server_node(i))};
    if (i == 0) {
        char text[1024];
        (void)snprintf(text, sizeof text, "servers=%u workers=%u %s", sim->config.servers,
                       sim->config.workers, sim->config.options);
        give(&process->options, text);
    }
    CHECK(service_init(&process->service, &config, 0) == STATUS_OK);
}

/* How long the step lasts that the worker has just computed. */
static int64_t step_ns(void *context) {
    struct sim_process *process = context;
    struct sim *sim = process->sim;
    const struct sim_config *config = &sim->config;
    int64_t takes = config->step_ns[process->index];
    if (config->step_max_ns > 0) {
        takes += (int64_t)random_below(&sim->random, (uint64_t)config->step_max_ns);
        takes += process->index == 0 ? config->slow_worker_ns : 0;
    }
    process->busy_until_ns = loop_now_ns(sim->loop) + takes;
    return takes;
}

/* A trainer waits in the middle of its step: the others go on. They may wait, too, each within the
 * wait of another. */
static void await_session(void *context) {
    struct sim_process *process = context;
    memory_forbid(false); /* which is the step's own affair, not theirs */
    process->sim->awaits++;
    process->waiting = true;
    (void)sim_step(process->sim);
    process->waiting = false;
}

static void open_worker(struct sim *sim, uint32_t i) {
    struct sim_process *process = &sim->workers[i];
    uint32_t node = sim_worker_node(sim, i);
    process->sim = sim;
    process->index = i;
    struct session_config session = {.member = member_of(sim, process, JOB_WORKER, node),
                                     .open_channel = open_channel,
                                     .context = opener(sim, node)};
    CHECK(session_init(&process->session, &session, 0) == STATUS_OK);
    struct trainer_config trainer = {.options = &process->options,
                                     .session = &process->session,
                                     .data = sim->config.data,
                                     .first_weights = sim->config.first_weights != NULL
                                                          ? sim->config.first_weights
                                                          : trainer_first_weights,
                                     .read_batch = sim->config.read_batch,
                                     .keep_weights = sim->config.weights,
                                     .loss = sim->config.loss,
                                     .loss_context = sim->config.loss_contexts[i],
                                     .await = await_session,
                                     .await_context = process,
                                     .step_ns = step_ns,
                                     .step_context = process};
    if (sim->config.worker_options[i] != NULL) {
        give(&process->options, sim->config.worker_options[i]);
    }
    trainer_init(&process->trainer, &trainer);
}

void sim_open(struct sim *sim, const struct sim_config *config) {
    *sim = (struct sim){.config = *config};
    threads_set(1); /* the models are tiny: waking threads would take all the time */
    random_open(&sim->random, config->seed, RANDOM_SIMULATOR, 1);
    CHECK(loop_open(&sim->loop, config->seed, &config->faults) == STATUS_OK);
    CHECK(loop_control(sim->loop, sim_server_node(0), &sim->listening) == STATUS_OK);
    CHECK(sim->listening->ops->listen(sim->listening, SIM_HOST, SIM_PORT) == STATUS_OK);
    for (uint32_t i = 0; i < config->servers; i++) {
        open_server(sim, i);
    }
    struct coordinator_config coordinator = {
        .control = sim->listening, .own = &sim->servers[0].options, .seed = config->seed};
    CHECK(coordinator_init(&sim->coordinator, &coordinator, 0) == STATUS_OK);
    for (uint32_t i = 0; i < config->workers; i++) {
        open_worker(sim, i);
    }
}

void sim_close(struct sim *sim) {
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        void *context = sim->servers[i].service.config.context;
        service_free(&sim->servers[i].service);
        free(context);
        sim->servers[i].control->ops->close(sim->servers[i].control, 0);
    }
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        void *context = sim->workers[i].session.config.context;
        trainer_free(&sim->workers[i].trainer);
        session_free(&sim->workers[i].session);
        free(context);
        sim->workers[i].control->ops->close(sim->workers[i].control, 0);
    }
    if (sim->tool.control != NULL) {
        sim->tool.control->ops->close(sim->tool.control, 0);
    }
    coordinator_free(&sim->coordinator);
    sim->listening->ops->close(sim->listening, 0);
    loop_close(sim->loop);
}

static bool poll_worker(struct sim_process *process) {
    /* Another trainer may have let time pass. */
    int64_t now_ns = loop_now_ns(process->sim->loop);
    bool worked = session_poll(&process->session, now_ns);
    if (process->waiting || now_ns < process->busy_until_ns) {
        return worked;
    }
    return trainer_poll(&process->trainer) || worked;
}

/* The next moment at which anyone has something to do by the clock. */
static int64_t next_ns(const struct sim *sim, int64_t now_ns) {
    int64_t next = loop_next_ns(sim->loop);
    int64_t deadline = coordinator_deadline_ns(&sim->coordinator);
    CHECK(deadline > now_ns); /* else its process would never sleep */
    next = deadline < next ? deadline : next;
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        deadline = service_deadline_ns(&sim->servers[i].service);
        next = deadline > now_ns && deadline < next ? deadline : next;
    }
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        deadline = session_deadline_ns(&sim->workers[i].session);
        next = deadline > now_ns && deadline < next ? deadline : next;
        deadline = sim->workers[i].busy_until_ns;
        next = deadline > now_ns && deadline < next ? deadline : next;
    }
    return next > now_ns ? next : now_ns + 1000;
}

static bool all_ended(const struct sim *sim) {
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        if (sim->servers[i].service.member.state != MEMBER_ENDED) {
            return false;
        }
    }
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        if (sim->workers[i].trainer.state != TRAINER_ENDED) {
            return false;
        }
    }
    return true;
}

/* ---- the tool ---- */

void sim_set(struct sim *sim, const char *mode) {
    struct sim_tool *tool = &sim->tool;
    uint32_t node = sim->config.servers + sim->config.workers;
    CHECK(tool->control == NULL);
    tool->mode = mode;
    CHECK(loop_control(sim->loop, node, &tool->control) == STATUS_OK);
    CHECK(tool->control->ops->dial(tool->control, SIM_HOST, SIM_PORT, &tool->connection) ==
          STATUS_OK);
}

static void tool_speak(struct sim_tool *tool) {
    Rubato__Set set = RUBATO__SET__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    uint8_t packed[512];
    size_t bytes = 0;
    char mode[64];
    (void)snprintf(mode, sizeof mode, "%s", tool->mode);
    set.mode = mode;
    message.body_case = RUBATO__MESSAGE__BODY_SET;
    message.set = &set;
    CHECK(message_pack(&message, packed, sizeof packed, &bytes) == STATUS_OK);
    CHECK(tool->control->ops->send(tool->control, tool->connection, packed, bytes) == STATUS_OK);
}

static void tool_listen(struct sim_tool *tool, const struct control_event *event) {
    struct message_scratch scratch;
    const Rubato__Message *message = NULL;
    CHECK(message_scratch_init(&scratch, 1 << 16) == STATUS_OK);
    CHECK(message_unpack(&scratch, event->packet, event->packet_bytes, &message) == STATUS_OK);
    if (message->body_case == RUBATO__MESSAGE__BODY_END) {
        tool->done = true;
        tool->exit_code = message->end->exit_code;
        (void)snprintf(tool->reason, sizeof tool->reason, "%s", message->end->reason);
    }
    message_scratch_free(&scratch);
}

static bool poll_tool(struct sim_tool *tool, int64_t now_ns) {
    struct control_event event;
    bool worked = false;
    while (tool->control != NULL && tool->control->ops->poll(tool->control, now_ns, &event)) {
        worked = true;
        if (event.kind == CONTROL_OPENED) {
            tool_speak(tool);
        } else if (event.kind == CONTROL_PACKET) {
            tool_listen(tool, &event);
        } else if (!tool->done) {
            tool->done = true;
            tool->exit_code = UINT32_MAX; /* hung up without a word */
        }
    }
    return worked;
}

bool sim_step(struct sim *sim) {
    int64_t now_ns = loop_now_ns(sim->loop);
    bool worked = poll_tool(&sim->tool, now_ns);
    coordinator_poll(&sim->coordinator, now_ns);
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        worked = service_poll(&sim->servers[i].service, now_ns) || worked;
    }
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        worked = poll_worker(&sim->workers[i]) || worked;
    }
    if (all_ended(sim)) {
        return false;
    }
    if (!worked) {
        loop_advance(sim->loop, next_ns(sim, now_ns));
    }
    if (now_ns > SIM_LIMIT_NS) {
        fprintf(stderr, "seed %" PRIu64 ": the job hangs\n", sim->config.seed);
        exit(1);
    }
    return true;
}

void sim_run(struct sim *sim) {
    while (sim_step(sim)) {
    }
}

struct shard_counters sim_counters(const struct sim *sim) {
    struct shard_counters sum = {0};
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        for (uint32_t k = 0; k < sim->servers[i].service.running; k++) {
            const struct shard_counters *one = &sim->servers[i].service.shards[k].counters;
            sum.pushes += one->pushes;
            sum.duplicates += one->duplicates;
            sum.stale += one->stale;
            sum.breaches += one->breaches;
            sum.corrupt += one->corrupt;
            sum.skipped += one->skipped;
            sum.dropped += one->dropped;
            sum.staleness_max =
                one->staleness_max > sum.staleness_max ? one->staleness_max : sum.staleness_max;
        }
    }
    return sum;
}
