#include "transport/endpoint.h"

#include "base/log.h"
#include "transport/channel_shm.h"
#include "transport/channel_ucx.h"
#include "transport/either.h"
#include "transport/limits.h"
#include "transport/rail_choice.h"
#include "transport/rails.h"

#include <stdio.h>
#include <string.h>

/* Beside its connections: UCX's own sockets and event queues of a channel, and whatever else a
 * process has open. */
#define CHANNEL_FILES 16
#define PROCESS_FILES 64

enum status endpoint_init(struct endpoint *endpoint, const struct job *job) {
    bool listens = job->listen[0] != '\0';
    bool joins = job->join[0] != '\0';
    const char *address = listens ? job->listen : job->join;
    *endpoint = (struct endpoint){0};
    if (listens == joins) {
        log_error("give either --listen HOST:PORT (the first server) or --join HOST:PORT (all "
                  "others)");
        return STATUS_INVALID;
    }
    if (!job_split_address(address, endpoint->host, sizeof endpoint->host, endpoint->port,
                           sizeof endpoint->port)) {
        log_error("--%s %s: allowed is HOST:PORT", listens ? "listen" : "join", address);
        return STATUS_INVALID;
    }
    if (!job_split_address(listens && job->bind[0] != '\0' ? job->bind : address,
                           endpoint->bind_host, sizeof endpoint->bind_host, endpoint->bind_port,
                           sizeof endpoint->bind_port)) {
        log_error("--bind %s: allowed is HOST:PORT", job->bind);
        return STATUS_INVALID;
    }
    if (strcmp(endpoint->port, "0") == 0 || strcmp(endpoint->bind_port, "0") == 0) {
        log_error("port 0 is no address that others could join: give a number from 1 to 65535");
        return STATUS_INVALID;
    }
    bool any = strcmp(job->channel, "auto") == 0;
    endpoint->uses_shm = any || strcmp(job->channel, "shm") == 0;
    endpoint->uses_ucx = any || strcmp(job->channel, "ucx") == 0;
    endpoint->uses_tls = strcmp(job->channel, "tls") == 0;
    if (!endpoint->uses_ucx && (job->net_devices[0] != '\0' || job->tls[0] != '\0')) {
        log_error("--channel %s uses no %s: leave out --net-devices and --tls", job->channel,
                  endpoint->uses_tls ? "UCX" : "network");
        return STATUS_INVALID;
    }
    endpoint->has_key = job->key_file[0] != '\0';
    if (endpoint->has_key) {
        TRY(control_tcp_read_key(job->key_file, endpoint->key));
    }
    const char *reachable = endpoint->bind_host;
    if (!control_tcp_is_loopback(reachable) && !endpoint->has_key && !job->insecure) {
        log_error("%s is not loopback and there is no key: make one with `rubato keygen FILE`, "
                  "give --key-file FILE to every process, or say --insecure",
                  reachable);
        return STATUS_DENIED;
    }
    if (!control_tcp_is_loopback(reachable) && job->insecure && !endpoint->has_key) {
        log_warn("--insecure: whoever reaches %s:%s can join this job", reachable, endpoint->port);
    }
    return STATUS_OK;
}

enum status endpoint_check_crowd(const struct job *job) {
    uint64_t members = (uint64_t)(job->servers + job->workers);
    return limits_files(members + CONTROL_TCP_PENDING_MAX + PROCESS_FILES, LOG_ERROR);
}

enum status endpoint_open_control(const struct endpoint *endpoint, struct control **control) {
    return control_tcp_open(control, endpoint->has_key ? endpoint->key : NULL);
}

/* By the route to the coordinator -> devices [OPTION_TEXT_MAX]. */
static enum status find_devices(const char *tls, const char *local_ip, char *devices) {
    char interface[OPTION_TEXT_MAX / 2], rdma[OPTION_TEXT_MAX / 4];
    channel_ucx_device_of(local_ip, interface, sizeof interface);
    if (interface[0] == '\0') {
        log_error("no network interface has %s: name one with --net-devices", local_ip);
        return STATUS_INVALID;
    }
    (void)snprintf(devices, OPTION_TEXT_MAX, "%s", interface);
    if (!channel_ucx_is_verbs(tls)) {
        return STATUS_OK;
    }
    channel_ucx_rdma_of(interface, rdma, sizeof rdma);
    if (rdma[0] == '\0') {
        log_error("--tls %s: no RDMA device belongs to interface %s: name one with --net-devices, "
                  "such as mlx5_0:1, or use --tls tcp",
                  tls, interface);
        return STATUS_INVALID;
    }
    bool tcp_too = strstr(tls, "tcp") != NULL;
    (void)snprintf(devices, OPTION_TEXT_MAX, "%s%s%s", rdma, tcp_too ? "," : "",
                   tcp_too ? interface : "");
    return STATUS_OK;
}

/* --wire, which is agreed on in the job, and --channel and --key-file, which are not. */
static enum status choose_wire(struct endpoint *endpoint, const struct job *job) {
    bool given = channel_tls_wire(job->wire, &endpoint->wire) == STATUS_OK;
    if (!given) endpoint->wire = endpoint->has_key ? TLS_WIRE_ENCRYPT : TLS_WIRE_PLAIN;
    if (!given || endpoint->wire == TLS_WIRE_PLAIN) return STATUS_OK;
    if (!endpoint->uses_tls) {
        log_error("--wire %s needs --channel tls: UCX and shared memory are plain", job->wire);
        return STATUS_INVALID;
    }
    if (!endpoint->has_key) {
        log_error("--wire %s needs a key: make one with `rubato keygen FILE` and give --key-file "
                  "FILE to every process",
                  job->wire);
        return STATUS_DENIED;
    }
    return STATUS_OK;
}

enum status endpoint_choose_device(struct endpoint *endpoint, const struct job *job,
                                   const char *local_ip) {
    char *devices = endpoint->net_devices;
    endpoint->channels = (uint64_t)job->shards; /* a worker has one, and that option's default */
    endpoint->control_connections = (uint64_t)(job->servers + job->workers);
    endpoint->devices_given = job->net_devices[0] != '\0';
    endpoint->lease_ns = job_lease_ns(job);
    (void)snprintf(endpoint->local_ip, sizeof endpoint->local_ip, "%s", local_ip);
    TRY(choose_wire(endpoint, job));
    if (endpoint->uses_tls) {
        static const char *const wires[] = {[TLS_WIRE_PLAIN] = "in the clear",
                                            [TLS_WIRE_AUTH] = "authenticated (AES-256-GMAC)",
                                            [TLS_WIRE_ENCRYPT] = "encrypted (AES-256-GCM)"};
        log_info("gradients and weights by TCP of %s, %s", local_ip, wires[endpoint->wire]);
    }
    if (!endpoint->uses_ucx) {
        return STATUS_OK;
    }
    if (endpoint->devices_given) {
        (void)snprintf(devices, sizeof endpoint->net_devices, "%s", job->net_devices);
    } else {
        TRY(find_devices(job->tls, local_ip, devices));
    }
    (void)snprintf(endpoint->tls, sizeof endpoint->tls, "%s", channel_ucx_tls(devices, job->tls));
    log_info("gradients and weights by %s of %s, UCX %s%s", endpoint->tls, devices,
             channel_ucx_version(),
             endpoint->uses_shm ? "; between processes of one host by shared memory" : "");
    if (job->tls[0] == '\0' && !endpoint->devices_given) {
        char rdma[64];
        channel_ucx_rdma_of(devices, rdma, sizeof rdma);
        if (rdma[0] != '\0') log_info("RDMA device %s is not used: --tls rc would", rdma);
    }
    return STATUS_OK;
}

/* What the process's channels take in all, each as large as this one, with so many rails, which
 * have no sockets to peers; what is refused is logged at this level. */
static enum status check_limits(const struct endpoint *endpoint,
                                const struct channel_config *config, int rail_count,
                                enum log_level level) {
    uint64_t contexts = 1 + (uint64_t)rail_count;
    uint64_t files = 2 * (uint64_t)config->peers_max + contexts * CHANNEL_FILES;
    if (endpoint->uses_tls) {
        uint64_t both_ways = 2 * (uint64_t)config->peers_max * TLS_CHANNEL_LANES;
        files = both_ways + TLS_CHANNEL_PENDING + CHANNEL_FILES;
    }
    TRY(limits_files(endpoint->channels * files + endpoint->control_connections + PROCESS_FILES,
                     level));
    if (!channel_ucx_is_verbs(endpoint->tls)) {
        return STATUS_OK;
    }
    /* What is sent lies in about as much memory again as what is received; where a channel is asked
     * for more, it looks again. */
    uint64_t buffers = 2 * (uint64_t)config->slots * config->slot_bytes;
    uint64_t locked_bytes = buffers + contexts * CHANNEL_UCX_LOCKED_BYTES;
    return limits_locked(endpoint->channels * locked_bytes, level);
}

static enum status open_ucx(const struct endpoint *endpoint, const struct channel_config *config,
                            const char *net_devices, struct channel **channel) {
    if (config->device_count > 0) device_enter(config->devices[0]);
    enum status status = channel_ucx_open(channel, config, net_devices, endpoint->tls);
    if (status == STATUS_DEVICE && endpoint->devices_given) {
        log_error("--net-devices %s: UCX cannot use it by %s (--tls)", net_devices, endpoint->tls);
        return STATUS_INVALID;
    }
    return status;
}

/* A rail for each device, beside the first channel. */
static enum status open_rails(const struct endpoint *endpoint, const struct channel_config *config,
                              const struct rail_choice *choice, struct channel **channel) {
    struct channel *rails[GROUP_MAX];
    struct channel_config each = *config;
    enum status status = STATUS_OK;
    int opened = 0;
    each.slots = 1; /* it receives nothing */
    each.slot_bytes = 1;
    each.device_count = 1;
    for (; opened < choice->count && status == STATUS_OK; opened++) {
        each.devices = &config->devices[opened];
        status = open_ucx(endpoint, &each, choice->names[opened], &rails[opened]);
    }
    if (status == STATUS_OK) return rails_open(*channel, rails, config, choice, channel);
    for (int i = 0; i < opened - 1; i++) { /* the last one did not open */
        rails[i]->ops->close(rails[i]);
    }
    (*channel)->ops->close(*channel);
    return status;
}

/* A choice is worth nothing where UCX does not know CUDA, as the channel is asked, nor where the
 * system's limits do not allow rails: a worker goes on without them. */
static enum status open_network(const struct endpoint *endpoint,
                                const struct channel_config *config,
                                const struct rail_choice *choice, struct channel **channel) {
    struct channel_config own = *config;
    if (choice->count > 0) own.device_count = 1;
    TRY(open_ucx(endpoint, &own, endpoint->net_devices, channel));
    if (choice->count == 0) return STATUS_OK;
    if ((*channel)->ops->device_memory(*channel, 0, NULL, 0) != STATUS_OK) {
        log_info("payloads leave from the host's memory: UCX %s knows no CUDA",
                 channel_ucx_version());
        return STATUS_OK;
    }
    if (check_limits(endpoint, config, choice->count, LOG_WARN) == STATUS_OK)
        return open_rails(endpoint, config, choice, channel);
    if (choice->count > 1) {
        log_warn("payloads leave from the host's memory: no UCX context for each of %d devices",
                 choice->count);
    } else {
        log_warn("no UCX context for the RDMA device that is nearest: payloads leave by all of %s",
                 endpoint->net_devices);
    }
    return STATUS_OK;
}

enum status endpoint_open_channel(const struct endpoint *endpoint, struct paced_link *link,
                                  const struct channel_config *config, struct channel **channel) {
    struct channel *shm = NULL;
    struct channel *ucx = NULL;
    struct rail_choice choice = {.count = 0};
    /* Whom shared memory reaches reads payloads where the host has them. */
    if (endpoint->uses_ucx && !endpoint->uses_shm) {
        rail_choice_make(&choice, config->devices, config->device_count, endpoint->net_devices,
                         endpoint->tls);
    }
    TRY(check_limits(endpoint, config, 0, LOG_ERROR));
    if (endpoint->uses_tls) {
        const struct channel_tls_config tls = {.ip = endpoint->local_ip,
                                               .key = endpoint->has_key ? endpoint->key : NULL,
                                               .wire = endpoint->wire,
                                               .lease_ns = endpoint->lease_ns};
        TRY(channel_tls_open(channel, config, &tls));
        return paced_wrap(link, config, channel);
    }
    if (endpoint->uses_shm) {
        TRY(channel_shm_open(&shm, config));
    }
    enum status status =
        endpoint->uses_ucx ? open_network(endpoint, config, &choice, &ucx) : STATUS_OK;
    if (status != STATUS_OK) {
        if (shm != NULL) shm->ops->close(shm);
        return status;
    }
    TRY(either_open(shm, ucx, config, channel));
    struct channel_config both = *config;
    both.slots *= 2; // each kind has its own
    return paced_wrap(link, &both, channel);
}
