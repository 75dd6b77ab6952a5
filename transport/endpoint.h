/* endpoint.h - how a program of a job may speak: its key, its addresses, its network interface.
 *
 * The rule: loopback needs no key; any other address without a key is refused unless the user said
 * --insecure, because anyone who reaches the port could then take the weights or poison them.
 */
#ifndef RUBATO_TRANSPORT_ENDPOINT_H
#define RUBATO_TRANSPORT_ENDPOINT_H

#include "proto/job.h"
#include "transport/channel_tls.h"
#include "transport/control_tcp.h"
#include "transport/paced.h"

struct endpoint {
    bool has_key;
    uint8_t key[CONTROL_KEY_BYTES];
    char host[OPTION_TEXT_MAX]; /* of the coordinator, for the others: --listen or --join */
    char port[16];
    char bind_host[OPTION_TEXT_MAX]; /* where the coordinator listens: --bind, or as above */
    char bind_port[16];
    bool uses_shm, uses_ucx, uses_tls; /* for data: --channel */
    bool devices_given;                /* by the user */
    char net_devices[OPTION_TEXT_MAX]; /* for the data channels; "" until endpoint_choose_device */
    char tls[OPTION_TEXT_MAX];         /* their transports, likewise */
    enum tls_wire wire;                /* of --channel tls, likewise */
    char local_ip[64];                 /* of this machine for the others, likewise */
    int64_t lease_ns;                  /* likewise */
    uint64_t channels;                 /* of this process, 0 until then */
    uint64_t control_connections;      /* at most, likewise */
};

/* From --listen (the coordinator) or --join. INVALID: neither or both, or malformed; DENIED: the
 * key cannot be used, or is missing where it is needed; or options that contradict each other.
 * Logged. */
enum status endpoint_init(struct endpoint *endpoint, const struct job *job) WARN_UNUSED;

/* May the coordinator of this job have as many connections as its members and strangers may open?
 * Before it listens. IO, logged. */
enum status endpoint_check_crowd(const struct job *job) WARN_UNUSED;

/* A new control object with the endpoint's key. MEMORY. */
enum status endpoint_open_control(const struct endpoint *endpoint,
                                  struct control **control) WARN_UNUSED;

/* Where UCX is used: the devices of --net-devices, or the interface that has `local_ip` (for the
 * transports of --tls: the RDMA device behind it); says which. Once the job's options are known.
 * INVALID, logged: there is none. */
enum status endpoint_choose_device(struct endpoint *endpoint, const struct job *job,
                                   const char *local_ip) WARN_UNUSED;

/* A data channel of the kinds that --channel allows, on the chosen devices, paced by `link`.
 * INVALID, IO or MEMORY, logged: the devices cannot be used, or the system's limits do not allow
 * the job's channels. */
enum status endpoint_open_channel(const struct endpoint *endpoint, struct paced_link *link,
                                  const struct channel_config *config,
                                  struct channel **channel) WARN_UNUSED;

#endif
