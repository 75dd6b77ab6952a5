#include "transport/endpoint.h"

#include "base/log.h"
#include "transport/channel_ucx.h"

#include <stdio.h>
#include <string.h>

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

enum status endpoint_open_control(const struct endpoint *endpoint, struct control **control) {
    return control_tcp_open(control, endpoint->has_key ? endpoint->key : NULL);
}

enum status endpoint_choose_device(struct endpoint *endpoint, const struct job *job,
                                   const char *local_ip) {
    endpoint->devices_given = job->net_devices[0] != '\0';
    if (endpoint->devices_given) {
        (void)snprintf(endpoint->net_devices, sizeof endpoint->net_devices, "%s", job->net_devices);
        return STATUS_OK;
    }
    channel_ucx_device_of(local_ip, endpoint->net_devices, sizeof endpoint->net_devices);
    if (endpoint->net_devices[0] == '\0') {
        log_error("no network interface has %s: name one with --net-devices", local_ip);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

enum status endpoint_open_channel(void *context, const struct channel_config *config,
                                  struct channel **channel) {
    const struct endpoint *endpoint = context;
    enum status status = channel_ucx_open(channel, config, endpoint->net_devices);
    if (status == STATUS_DEVICE && endpoint->devices_given) {
        log_error("--net-devices %s: UCX cannot use it", endpoint->net_devices);
        return STATUS_INVALID;
    }
    return status;
}
