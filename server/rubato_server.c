/* rubato-server: K shard threads, one control thread; the first server is also the coordinator. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "kernels/threads.h"
#include "proto/program.h"
#include "server/coordinator.h"
#include "server/service.h"
#include "transport/channel_ucx.h"
#include "transport/endpoint.h"
#include "transport/paced.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const char usage[] =
    "rubato-server: holds a part of the weights and the optimizer state of a job.\n"
    "\n"
    "  rubato-server --listen HOST:PORT [options]   the first server, which gathers the job\n"
    "  rubato-server --join HOST:PORT [options]     every other server\n"
    "\n"
    "Servers and workers may start in any order. When the job ends, servers exit (see --stay).\n"
    "\n"
    "Examples:\n"
    "  rubato-server --listen 127.0.0.1:29600 --servers 2 --workers 4 --mode async\n"
    "  rubato-server --join 127.0.0.1:29600 --shards 2\n"
    "  rubato-server --listen 10.0.0.1:29600 --key-file job.key\n";

/* All that one job of this process needs. */
struct server {
    struct job job;
    struct options options;
    struct endpoint endpoint;
    struct paced_link link;
    struct control *listening; /* the coordinator's; NULL elsewhere */
    struct control *dialing;   /* the member's */
    struct wake wake;
    int signals;
    struct coordinator coordinator;
    struct service service;
    int interrupted; /* the signal that ends the process */
};

static uint64_t random_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        seed = (uint64_t)clock_now_ns() ^ (uint64_t)getpid() << 32;
    }
    return seed;
}

/* The address of this machine that the others use -> ip. The coordinator's own member may have
 * dialled loopback (--listen 0.0.0.0), so there the other peers' connections say it. */
static void find_local_ip(struct server *server, char *ip, size_t bytes) {
    struct control *control = server->listening;
    server->dialing->ops->local_ip(server->dialing, server->service.member.connection, ip, bytes);
    for (uint32_t i = 0; control != NULL && i < server->coordinator.membership.capacity; i++) {
        const struct peer *peer = &server->coordinator.membership.peers[i];
        if (!control_tcp_is_loopback(ip)) {
            return;
        }
        if (peer->state != PEER_FREE) {
            control->ops->local_ip(control, peer->connection, ip, bytes);
        }
    }
}

/* The interface is known once the member is connected. */
static enum status open_channel(void *context, const struct channel_config *config,
                                struct channel **channel) {
    struct server *server = context;
    if (server->endpoint.channels == 0) {
        char ip[64] = "";
        find_local_ip(server, ip, sizeof ip);
        TRY(endpoint_choose_device(&server->endpoint, &server->job, ip));
    }
    return endpoint_open_channel(&server->endpoint, &server->link, config, channel);
}

static enum status start_coordinator(struct server *server, bool again) {
    const struct job *job = &server->job;
    const char *host = server->endpoint.bind_host;
    struct coordinator_config config = {.own = &server->options, .seed = random_seed()};
    if (job->join_timeout > 0) {
        config.join_timeout_ns = job_join_timeout_ns(job);
    }
    if (again) {
        config.join_timeout_ns = INT64_MAX; /* --stay: until the next job comes */
    }
    TRY(endpoint_open_control(&server->endpoint, &server->listening));
    struct control *control = server->listening;
    ASSERT(control != NULL);
    TRY(control->ops->listen(control, host, server->endpoint.bind_port));
    config.control = control;
    TRY(coordinator_init(&server->coordinator, &config, clock_now_ns()));
    log_info("listening at %s:%s", host, server->endpoint.bind_port);
    return STATUS_OK;
}

static enum status start_service(struct server *server, bool again) {
    const struct endpoint *endpoint = &server->endpoint;
    bool listens = server->listening != NULL;
    const char *host = listens ? endpoint->bind_host : endpoint->host;
    if (strcmp(host, "0.0.0.0") == 0) {
        host = "127.0.0.1"; /* the coordinator dials itself */
    } else if (strcmp(host, "::") == 0) {
        host = "::1";
    }
    struct service_config config = {
        .member = {.control = server->dialing,
                   .options = &server->options,
                   .role = JOB_SERVER,
                   .shards = (uint32_t)server->job.shards,
                   .host = host,
                   .port = listens ? endpoint->bind_port : endpoint->port,
                   .seed = random_seed(),
                   /* The coordinator is in this process, or the next
                                                * job may come at any time (--stay). */
                   .patient = again || listens},
        .open_channel = open_channel,
        .context = server,
        .threads = true,
        .wake = &server->wake};
    return service_init(&server->service, &config, clock_now_ns());
}

static void take_signal(struct server *server) {
    char reason[96];
    int number = signals_read(server->signals);
    if (number == 0) {
        return;
    }
    server->interrupted = number;
    log_info("interrupted by %s: leaving the job", signals_name(number));
    (void)snprintf(reason, sizeof reason, "interrupted by %s", signals_name(number));
    if (server->listening != NULL) {
        (void)snprintf(reason, sizeof reason, "the coordinator was interrupted by %s",
                       signals_name(number));
        coordinator_end(&server->coordinator, reason, EXIT_CODE_UNREACHABLE);
    }
    member_leave(&server->service.member, reason, SIGNALS_EXIT_BASE + number);
}

/* True when the job is over for this process. */
static bool poll_once(struct server *server, bool *worked) {
    int64_t now_ns = clock_now_ns();
    take_signal(server);
    *worked = service_poll(&server->service, now_ns);
    if (server->listening != NULL) {
        coordinator_poll(&server->coordinator, now_ns);
        if (server->coordinator.phase == COORDINATOR_ENDED) {
            return true;
        }
    }
    return server->service.member.state == MEMBER_ENDED && server->listening == NULL;
}

static void sleep_until_work(struct server *server) {
    int64_t deadline_ns = service_deadline_ns(&server->service);
    int fds[4] = {server->wake.fd, server->signals, server->dialing->ops->wait_fd(server->dialing),
                  -1};
    if (server->listening != NULL) {
        int64_t other_ns = coordinator_deadline_ns(&server->coordinator);
        deadline_ns = other_ns < deadline_ns ? other_ns : deadline_ns;
        fds[3] = server->listening->ops->wait_fd(server->listening);
    }
    int64_t left_ns = deadline_ns - clock_now_ns();
    wake_wait(fds, 4, left_ns > 0 ? left_ns : 0);
}

static int serve(struct server *server) {
    bool worked = false;
    for (;;) {
        wake_clear(&server->wake);
        if (poll_once(server, &worked)) {
            break;
        }
        if (!worked) {
            sleep_until_work(server);
        }
    }
    if (server->listening == NULL) {
        return server->service.member.exit_code;
    }
    const struct coordinator *coordinator = &server->coordinator;
    if (coordinator->reason[0] != '\0') {
        log_error("the job ended: %s", coordinator->reason);
    } else {
        log_info("the job is finished");
    }
    return coordinator->exit_code;
}

/* One job, from joining to its end. Returns the exit code. */
static int run_job(struct server *server, bool again) {
    int exit_code = EXIT_CODE_OK;
    enum status status = endpoint_open_control(&server->endpoint, &server->dialing);
    if (status == STATUS_OK && server->job.listen[0] != '\0') {
        status = start_coordinator(server, again);
        exit_code = status == STATUS_IO ? EXIT_CODE_CREATE : EXIT_CODE_OK;
    }
    if (status == STATUS_OK) {
        status = start_service(server, again);
    }
    if (status == STATUS_OK) {
        exit_code = serve(server);
        service_free(&server->service);
        if (server->listening != NULL) {
            coordinator_free(&server->coordinator);
        }
    } else if (exit_code == EXIT_CODE_OK) {
        exit_code = (int)status_exit_code(status);
    }
    if (server->dialing != NULL) {
        server->dialing->ops->close(server->dialing, CLOCK_S);
    }
    if (server->listening != NULL) {
        server->listening->ops->close(server->listening, CLOCK_S);
    }
    server->dialing = server->listening = NULL;
    return exit_code;
}

/* With --stay, whether to wait for another job after this end: not when this process itself is at
 * fault. A coordinator stays when its peers did not agree. */
static bool stays_after(const struct server *server, int exit_code) {
    static const int own_faults[] = {EXIT_CODE_USAGE, EXIT_CODE_INTERNAL, EXIT_CODE_MEMORY,
                                     EXIT_CODE_CREATE, EXIT_CODE_DENIED};
    for (size_t i = 0; i < sizeof own_faults / sizeof own_faults[0]; i++) {
        if (exit_code == own_faults[i]) {
            return false;
        }
    }
    bool joined = server->job.listen[0] == '\0';
    return !joined || (exit_code != EXIT_CODE_PROTOCOL && exit_code != EXIT_CODE_MISMATCH);
}

/* Runs jobs until one is enough. */
static int run(struct server *server) {
    const struct options options = server->options;
    const struct job job = server->job;
    int exit_code = EXIT_CODE_OK;
    bool again = false;
    do {
        /* Each job starts from what the user gave, not from what the last one taught. */
        server->options = options;
        server->job = job;
        exit_code = run_job(server, again);
        again = true;
        if (job.stay && exit_code != EXIT_CODE_OK && server->interrupted == 0) {
            wake_wait(&server->signals, 1, CLOCK_S); /* what failed at once may fail again */
        }
    } while (job.stay && server->interrupted == 0 && stays_after(server, exit_code));
    return server->interrupted != 0 ? SIGNALS_EXIT_BASE + server->interrupted : exit_code;
}

int main(int argc, char **argv) {
    static struct server server; /* large, and lives as long as the process */
    static const struct program program = {
        .name = "rubato-server", .usage = usage, .role = JOB_SERVER};
    int exit_code = EXIT_CODE_OK;
    if (!program_begin(&program, &server.options, &server.job, argc, argv, &exit_code)) {
        return exit_code;
    }
    /* Shards' threads inherit it, and their memory comes from where they run: each is the first to
     * touch its own. */
    enum status status = server.job.cpus[0] != '\0' ? threads_confine(server.job.cpus) : STATUS_OK;
    if (status == STATUS_OK) {
        status = endpoint_init(&server.endpoint, &server.job);
    }
    if (status == STATUS_OK && server.job.listen[0] != '\0') {
        status = endpoint_check_crowd(&server.job);
    }
    if (status == STATUS_OK) {
        status = paced_link_init(&server.link, server.job.link);
    }
    if (status == STATUS_OK) {
        status = signals_open(&server.signals);
    }
    if (status == STATUS_OK) {
        status = wake_init(&server.wake);
    }
    if (status != STATUS_OK) {
        return (int)status_exit_code(status);
    }
    channel_ucx_setup();
    return run(&server);
}
