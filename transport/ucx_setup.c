#include "transport/ucx_setup.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/channel.h"
#include "transport/channel_ucx.h"

#include <glob.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* newer UCX has it in these headers, but ISO C has not; NOLINTNEXTLINE(*-identifier*) */
#define asm __asm__
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

extern char **environ;

/* How long a link that is up may take to run, and how often it is looked at meanwhile. */
#define LINK_WAIT_NS (2 * CLOCK_S)
enum { LINK_LOOKS = 40 };

/* Over TCP UCX sends in segments, and a process aborts on one longer than it receives, so all must
 * agree. Each is copied into before it leaves, so it should stay in the second cache, and costs a
 * write(2), so it should be long. Three times 60 KiB and a header of 5 bytes are three packets of
 * the loopback interface (65,483 bytes), and at most three of those that the kernel hands to a
 * network card for cutting, with MTUs of 1500 and 9000: a little more, such as 3 * 64 KiB, drags a
 * short packet behind each. Two segments with their headers are received at once, of which UCX adds
 * one's itself. */
enum { SEGMENT_BYTES = 180 << 10, RECEIVED_BYTES = 2 * SEGMENT_BYTES + 5 };

/* A published address. offset size field: 0 4 magic "RUCX", 4 2 UCX major, 6 2 UCX minor,
 * 8 4 length of UCX's own address, 12 4 its CRC32C, 16 4 bytes of a segment, then UCX's own
 * address; little-endian. */
struct address_head {
    uint32_t magic;
    uint16_t major, minor;
    uint32_t bytes;
    uint32_t crc32c;
    uint32_t segment_bytes;
};
_Static_assert(sizeof(struct address_head) == 20, "part of the published address");
#define ADDRESS_MAGIC UINT32_C(0x58435552)

enum status ucx_setup_wrap(ucp_worker_h worker, uint8_t *address, size_t *bytes) {
    ucp_address_t *own = NULL;
    size_t own_bytes = 0;
    ucs_status_t code = ucp_worker_get_address(worker, &own, &own_bytes);
    if (code != UCS_OK) {
        log_error("ucx: cannot get the worker's address: %s", ucs_status_string(code));
        return STATUS_DEVICE;
    }
    struct address_head head = {
        .magic = ADDRESS_MAGIC, .bytes = (uint32_t)own_bytes, .segment_bytes = SEGMENT_BYTES};
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    head.major = (uint16_t)major;
    head.minor = (uint16_t)minor;
    head.crc32c = checksum_crc32c(own, own_bytes);
    enum status status = STATUS_OK;
    if (own_bytes > CHANNEL_ADDRESS_MAX - sizeof head) {
        log_error("ucx: an address of %zu bytes is too long; name fewer --net-devices", own_bytes);
        status = STATUS_DEVICE;
    } else {
        memcpy(address, &head, sizeof head);
        memcpy(address + sizeof head, own, own_bytes);
        *bytes = sizeof head + own_bytes;
    }
    ucp_worker_release_address(worker, own);
    return status;
}

enum status ucx_setup_unwrap(uint32_t peer, const uint8_t *address, size_t bytes,
                             const ucp_address_t **unwrapped) {
    struct address_head head;
    if (bytes <= sizeof head || bytes > CHANNEL_ADDRESS_MAX) {
        log_error("ucx: the address of peer %u has %zu bytes", peer, bytes);
        return STATUS_INVALID;
    }
    memcpy(&head, address, sizeof head);
    if (head.magic != ADDRESS_MAGIC || head.bytes != bytes - sizeof head ||
        head.crc32c != checksum_crc32c(address + sizeof head, head.bytes)) {
        log_error("ucx: the address of peer %u is damaged, or it uses another --channel or release",
                  peer);
        return STATUS_INVALID;
    }
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    if (head.major != major || head.minor != minor) {
        log_error("ucx: peer %u has UCX %u.%u, this process %u.%u: they must be the same", peer,
                  head.major, head.minor, major, minor);
        return STATUS_INVALID;
    }
    if (head.segment_bytes != SEGMENT_BYTES) {
        log_error("ucx: peer %u sends segments of %u bytes, this process of %d: take the same "
                  "release of rubato",
                  peer, head.segment_bytes, SEGMENT_BYTES);
        return STATUS_INVALID;
    }
    *unwrapped = (const ucp_address_t *)(address + sizeof head);
    return STATUS_OK;
}

/* UCX prints what it does not let one ask: lines such as
 * "#   lane[0]:  1:rc_verbs/rxe0:1.0 md[0]  -> ...". */
void ucx_setup_lanes(ucp_ep_h endpoint, char *lanes, size_t bytes) {
    char *text = NULL;
    size_t text_bytes = 0, used = 0;
    lanes[0] = 0;
    FILE *stream = open_memstream(&text, &text_bytes);
    if (!stream) return;
    ucp_ep_print_info(endpoint, stream);
    if (fclose(stream) == 0) {
        for (const char *lane = strstr(text, "lane["); lane; lane = strstr(lane + 1, "lane[")) {
            char name[64];
            if (sscanf(lane, "lane[%*d]: %*d:%63[^ .]", name) != 1 || strstr(lanes, name)) continue;
            int length = snprintf(lanes + used, bytes - used, "%s%s", used ? ", " : "", name);
            if (length < 0 || (size_t)length >= bytes - used) break;
            used += (size_t)length;
        }
    }
    free(text);
}

const char *channel_ucx_tls(const char *net_devices, const char *tls) {
    if (*tls) return tls;
    bool verbs = false, interfaces = *net_devices == 0;
    for (const char *name = net_devices; *name;) {
        size_t length = strcspn(name, ",");
        bool port = memchr(name, ':', length) != NULL;
        verbs = verbs || port;
        interfaces = interfaces || !port;
        name += length + (name[length] == ',');
    }
    return !verbs ? "tcp" : interfaces ? "ib,tcp" : "ib";
}

/* Is one of the names in the list `wanted`, or, unless `whole`, does one begin with it? */
static bool list_find(const char *list, const char *wanted, bool whole) {
    size_t bytes = strlen(wanted);
    for (const char *name = list; *name;) {
        size_t length = strcspn(name, ",");
        if (strncmp(name, wanted, bytes) == 0 && (!whole || length == bytes)) return true;
        name += length + (name[length] == ',');
    }
    return false;
}

static bool list_has(const char *list, const char *prefix) {
    return list_find(list, prefix, false);
}

bool channel_ucx_is_verbs(const char *tls) {
    return list_has(tls, "ib") || list_has(tls, "rc") || list_has(tls, "dc") || list_has(tls, "ud");
}

/* Is one of the interfaces up, but not yet what the kernel calls running? */
static bool has_starting_link(const char *net_devices) {
    struct ifaddrs *all = NULL;
    bool starting = false;
    if (getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        bool is_starting = (one->ifa_flags & (IFF_UP | IFF_RUNNING)) == IFF_UP;
        starting = starting || (is_starting && list_find(net_devices, one->ifa_name, true));
    }
    freeifaddrs(all);
    return starting;
}

/* Packets go by a link that has just come up, but the kernel calls it running up to a second later,
 * and UCX does not use it before. */
static void await_links(const char *net_devices) {
    const struct timespec pause = {.tv_nsec = (long)(LINK_WAIT_NS / LINK_LOOKS)};
    for (int look = 0; look < LINK_LOOKS && has_starting_link(net_devices); look++)
        (void)nanosleep(&pause, NULL);
}

/* The configuration is released. */
static enum status init_context(ucp_config_t *config, const char *net_devices, const char *tls,
                                ucp_context_h *context) {
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 0,
    };
    ucs_status_t code = ucp_init(&params, config, context);
    ucp_config_release(config);
    if (code != UCS_OK) {
        *context = NULL;
        log_error("ucx: cannot use net devices \"%s\" by %s: %s", net_devices, tls,
                  ucs_status_string(code));
        return code == UCS_ERR_NO_MEMORY ? STATUS_MEMORY : STATUS_DEVICE;
    }
    return STATUS_OK;
}

/* By one name or the other, or by both. */
static void set(ucp_config_t *config, const char *name, const char *other, const char *value) {
    ucs_status_t code = ucp_config_modify(config, name, value);
    bool taken = code == UCS_OK;
    if (other && ucp_config_modify(config, other, value) == UCS_OK) taken = true;
    if (!taken) log_warn("ucx: %s=%s is not taken: %s", name, value, ucs_status_string(code));
}

enum status ucx_setup_context(const char *net_devices, const char *tls, ucp_context_h *context) {
    ucp_config_t *config = NULL;
    ucs_status_t code = ucp_config_read(NULL, NULL, &config);
    if (code != UCS_OK) {
        log_error("ucx: cannot read its configuration: %s", ucs_status_string(code));
        return STATUS_DEVICE;
    }
    await_links(net_devices);
    char segment[16], received[16], half_of_memory[32];
    (void)snprintf(segment, sizeof segment, "%d", SEGMENT_BYTES);
    (void)snprintf(received, sizeof received, "%d", RECEIVED_BYTES);
    (void)snprintf(half_of_memory, sizeof half_of_memory, "%llu",
                   (unsigned long long)sysconf(_SC_PHYS_PAGES) / 2 *
                       (unsigned long long)sysconf(_SC_PAGESIZE));
    /* Over UCX's defaults and its own files (ucx.conf). Shared memory is left out: it does not work
     * with the peer error mode. Over TCP, UCX 1.13 must not send from the owner's memory: a send
     * that the socket took in part, and that then fails since the peer died, is completed twice
     * (uct_tcp_ep_sendv), and that aborts us ("comp->count > 0"). Its puts would complete once, but
     * it uses them only without error handling, where an endpoint with sends in flight, to a peer
     * that has stopped, cannot be closed. */
    tls = channel_ucx_tls(net_devices, tls);
    /* Settings of transports have two names: UCX 1.13 knows them by the first, without the
     * transport, later releases by the second. */
    const char *const settings[][3] = {
        {"TLS", NULL, tls},
        {"ZCOPY_THRESH", NULL, list_has(tls, "tcp") ? "inf" : "auto"},
        {"NET_DEVICES", NULL, *net_devices ? net_devices : "all"},
        {"PROTO_ENABLE", NULL, "n"},
        {"ADDRESS_VERSION", NULL, "v1"},
        {"MEMTYPE_CACHE", NULL, "n"},
        {"MAX_EAGER_RAILS", NULL, "1"},
        {"RNDV_SCHEME", NULL, "auto"},
        {"UNIFIED_MODE", NULL, "n"},
        {"KEEPALIVE_INTERVAL", NULL, "20s"},
        {"TX_SEG_SIZE", "TCP_TX_SEG_SIZE", segment},
        {"RX_SEG_SIZE", "TCP_RX_SEG_SIZE", received},
        /* So much from each of at most so many sockets is what channel_ucx_receive.c has room for.
         * (UCX 1.13 takes the short name for CUDA's transports, too, as events a poll.) */
        {"MAX_POLL", "TCP_MAX_POLL", "4"},
        /* What UCX has registered by itself and nobody uses now (ucx_memory.h): a bound, far from
         * what a job needs, since what goes beyond it is registered anew for each message. */
        {"RCACHE_MAX_REGIONS", "IB_RCACHE_MAX_REGIONS", "16384"},
        {"RCACHE_MAX_SIZE", "IB_RCACHE_MAX_SIZE", half_of_memory},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        set(config, settings[i][0], settings[i][1], settings[i][2]);
    /* RoCE: UCX tells IPv4 packets from IPv6 ones by a field that only mlx5 fills that way, and
     * drops all others in silence: rc, which is wired up over ud, would never connect. */
    if (channel_ucx_is_verbs(tls)) set(config, "UD_ETH_DGID_CHECK", "UD_VERBS_ETH_DGID_CHECK", "n");
    return init_context(config, net_devices, tls, context);
}

/* Where its modules lie, and what its hooks of the allocator have taken before main() anyway: they
 * change neither what is sent nor to whom. */
static bool is_kept(const char *variable) {
    static const char *const kept[] = {"UCX_MODULE_DIR=", "UCX_MEM_"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        if (strncmp(variable, kept[i], strlen(kept[i])) == 0) return true;
    }
    return false;
}

/* The first variable of the environment that UCX would read and must not -> name. UCX reads no name
 * of 256 bytes. */
static bool find_exported(char name[256]) {
    for (char **variable = environ; *variable; variable++) {
        size_t length = strcspn(*variable, "=");
        if (strncmp(*variable, "UCX_", 4) != 0 || is_kept(*variable)) continue;
        if (length >= 256 || (*variable)[length] != '=') continue;
        memcpy(name, *variable, length);
        name[length] = 0;
        return true;
    }
    return false;
}

void channel_ucx_clear_environment(void) {
    char name[256], names[1024] = "";
    size_t used = 0;
    while (find_exported(name) && unsetenv(name) == 0) {
        int length = snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
        if (length > 0 && (size_t)length < sizeof names - used) used += (size_t)length;
        names[used] = 0;
    }
    if (used == 0) return;
    log_warn("ignored, though exported: %s; choose UCX's network by --net-devices and --tls",
             names);
}

void channel_ucx_setup(void) {
    /* Its lines about a dead peer would be alarming and say nothing that our own events don't. The
     * last ones are its own defaults, over what its library constructor took from the environment
     * before main(). */
    static const char *const settings[][2] = {
        {"LOG_LEVEL", "fatal"},       {"HANDLE_ERRORS", "none"},     {"ERROR_SIGNALS", ""},
        {"DEBUG_SIGNO", "0"},         {"WARN_UNUSED_ENV_VARS", "n"}, {"LOG_LEVEL_TRIGGER", "fatal"},
        {"ASYNC_MAX_EVENTS", "1024"}, {"ASYNC_SIGNO", "SIGALRM"},    {"RCACHE_CHECK_PFN", "0"},
        {"MODULES", "all"},
    };
    channel_ucx_clear_environment();
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        ucs_status_t code = ucs_global_opts_set_value(settings[i][0], settings[i][1]);
        if (code != UCS_OK) log_debug("ucx: this release has no %s", settings[i][0]);
    }
    /* The constructor's signal handlers are there by now; what has none is passed over. */
    for (int number = 1; number < SIGRTMIN; number++)
        ucs_debug_disable_signal(number);
}

void channel_ucx_device_of(const char *ip, char *name, size_t bytes) {
    name[0] = 0;
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0) return;
    for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        if (!entry->ifa_addr) continue;
        int family = entry->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        socklen_t length =
            family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        char text[NI_MAXHOST];
        if (getnameinfo(entry->ifa_addr, length, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0) {
            continue;
        }
        text[strcspn(text, "%")] = 0; /* the scope of a link-local address */
        if (strcmp(text, ip) != 0) continue;
        snprintf(name, bytes, "%s", entry->ifa_name);
        break;
    }
    freeifaddrs(list);
}

void channel_ucx_rdma_of(const char *interface, char *name, size_t bytes) {
    static const char pattern[] = "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*";
    glob_t found;
    name[0] = 0;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && name[0] == 0; i++) {
            char device[64], port[16], line[IF_NAMESIZE + 2] = "";
            FILE *file = fopen(found.gl_pathv[i], "r");
            if (!file) continue;
            bool named = fgets(line, sizeof line, file) != NULL; /* an unused entry has no text */
            (void)fclose(file);
            line[strcspn(line, "\n")] = 0;
            if (!named || strcmp(line, interface) != 0) continue;
            if (sscanf(found.gl_pathv[i], "/sys/class/infiniband/%63[^/]/ports/%15[^/]", device,
                       port) == 2) {
                (void)snprintf(name, bytes, "%s:%s", device, port);
            }
        }
    }
    globfree(&found);
}

const char *channel_ucx_version(void) {
    return ucp_get_version_string();
}
