/* endpoint.h - how a program of a job may speak: its key, its addresses, its network interface.
 *
 * The rule: loopback needs no key; any other address without a key is refused unless the user said
 * --insecure, because anyone who reaches the port could then take the weights or poison them.
 */
#ifndef RUBATO_TRANSPORT_ENDPOINT_H
#define RUBATO_TRANSPORT_ENDPOINT_H

#include "proto/job.h"
#include "transport/channel.h"
#include "transport/control_tcp.h"

struct endpoint {
    bool has_key;
    uint8_t key[CONTROL_KEY_BYTES];
    char host[OPTION_TEXT_MAX]; /* of the coordinator, for the others: --listen or --join */
    char port[16];
    char bind_host[OPTION_TEXT_MAX]; /* where the coordinator listens: --bind, or as above */
    char bind_port[16];
    bool devices_given;                /* by the user */
    char net_devices[OPTION_TEXT_MAX]; /* for the data channels; "" until endpoint_choose_device */
};

/* From --listen (the coordinator) or --join. INVALID: neither or both, or malformed; DENIED: the
 * key cannot be used, or is missing where it is needed. Logged. */
enum status endpoint_init(struct endpoint *endpoint, const struct job *job) WARN_UNUSED;

/* A new control object with the endpoint's key. MEMORY. */
enum status endpoint_open_control(const struct endpoint *endpoint,
                                  struct control **control) WARN_UNUSED;

/* The interface of --net-devices, or the one that has `local_ip`. INVALID, logged: none has. */
enum status endpoint_choose_device(struct endpoint *endpoint, const struct job *job,
                                   const char *local_ip) WARN_UNUSED;

/* A data channel on the chosen interface; context is the endpoint. Fits service_open_fn and
 * session_open_fn. */
enum status endpoint_open_channel(void *context, const struct channel_config *config,
                                  struct channel **channel) WARN_UNUSED;

#endif
