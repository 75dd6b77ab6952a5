/* ucx_cuda.c - in the place of a UCX that was built with CUDA, on a machine with RDMA: preloaded,
 * it makes the one that is here say that it knows a CUDA device's memory, and send from there, by
 * way of a copy, and by TCP of the loopback interface whatever transports and devices it is given.
 *
 * A program that touches such a payload itself faults, since the host cannot access the stand-in's
 * device memory. CUDA_ON_CPU_MARKS names a file that gets a line for each payload: its bytes, the
 * CUDA device that it lies on, the one that is current when it is sent, and the net devices of the
 * context that it is sent by.
 */
#define _GNU_SOURCE /* mlock2; NOLINT(*-identifier*) */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucp/api/ucp.h>

#define VISIBLE __attribute__((visibility("default")))

/* A net device that is not there. */
#define MISSING "mlx5_0:9"

/* UCX's contexts, workers and endpoints, with the net devices of their contexts. Only one thread of
 * a process uses UCX. */
enum { NAMED_MAX = 256, NAME_BYTES = 128 };
static struct named {
    const void *object;
    char net_devices[NAME_BYTES];
} named[NAMED_MAX];
static int named_count;
static char given[NAME_BYTES]; /* to the configuration that was made last */

struct copied {
    void *bytes;
    ucp_send_nbx_callback_t done;
    void *user;
};

static void die(const char *what) {
    fprintf(stderr, "ucx_cuda: %s\n", what);
    abort();
}

/* UCX's own function of this name. */
static void *own(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function == NULL) die(name);
    return function;
}

static void *copy_from_device(const void *memory, size_t bytes) {
    void *copy = malloc(bytes + 1);
    cudaStream_t stream;
    if (copy == NULL || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMemcpyAsync(copy, memory, bytes, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess)
        die("cannot copy from the device");
    (void)cudaStreamDestroy(stream);
    return copy;
}

/* The last one at this address. */
static const char *name_of(const void *object) {
    for (int i = named_count - 1; i >= 0; i--)
        if (named[i].object == object) return named[i].net_devices;
    die("what is this?");
    return NULL;
}

static void set_name(const void *object, const char *net_devices) {
    struct named one = {.object = object};
    if (named_count == NAMED_MAX) die("too many objects");
    (void)snprintf(one.net_devices, sizeof one.net_devices, "%s", net_devices);
    named[named_count++] = one;
}

static void mark(const void *memory, size_t bytes, ucp_ep_h ep) {
    struct cudaPointerAttributes attributes;
    int current = -1;
    const char *path = getenv("CUDA_ON_CPU_MARKS");
    FILE *file = path != NULL ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess ||
        cudaGetDevice(&current) != cudaSuccess)
        die("where is this?");
    (void)fprintf(file, "%zu %d %d %s\n", bytes, attributes.device, current, name_of(ep));
    (void)fclose(file);
}

static void sent(void *request, ucs_status_t status, void *user) {
    struct copied *copied = user;
    copied->done(request, status, copied->user);
    free(copied->bytes);
    free(copied);
}

/* As much memory may be locked as RDMA needs; here none is. */
VISIBLE int mlock2(const void *addr, size_t length, unsigned flags) {
    (void)addr, (void)length, (void)flags;
    return 0;
}

VISIBLE ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value) {
    ucs_status_t (*modify)(ucp_config_t *, const char *, const char *) = NULL;
    *(void **)&modify = own("ucp_config_modify");
    if (strcmp(name, "TLS") == 0) return modify(config, name, "tcp");
    if (strcmp(name, "NET_DEVICES") != 0) return modify(config, name, value);
    (void)snprintf(given, sizeof given, "%s", value);
    return modify(config, name, strcmp(value, MISSING) == 0 ? "nonesuch0" : "lo");
}

VISIBLE ucs_status_t ucp_init_version(unsigned api_major_version, unsigned api_minor_version,
                                      const ucp_params_t *params, const ucp_config_t *config,
                                      ucp_context_h *context_p) {
    ucs_status_t (*init)(unsigned, unsigned, const ucp_params_t *, const ucp_config_t *,
                         ucp_context_h *) = NULL;
    *(void **)&init = own("ucp_init_version");
    ucs_status_t status = init(api_major_version, api_minor_version, params, config, context_p);
    if (status == UCS_OK) set_name(*context_p, given);
    return status;
}

VISIBLE ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params,
                                       ucp_worker_h *worker) {
    ucs_status_t (*create)(ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *) = NULL;
    *(void **)&create = own("ucp_worker_create");
    ucs_status_t status = create(context, params, worker);
    if (status == UCS_OK) set_name(*worker, name_of(context));
    return status;
}

VISIBLE ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
                                   ucp_ep_h *ep) {
    ucs_status_t (*create)(ucp_worker_h, const ucp_ep_params_t *, ucp_ep_h *) = NULL;
    *(void **)&create = own("ucp_ep_create");
    ucs_status_t status = create(worker, params, ep);
    if (status == UCS_OK) set_name(*ep, name_of(worker));
    return status;
}

VISIBLE ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attributes) {
    ucs_status_t (*query)(ucp_context_h, ucp_context_attr_t *) = NULL;
    *(void **)&query = own("ucp_context_query");
    ucs_status_t status = query(context, attributes);
    if (attributes->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES)
        attributes->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}

VISIBLE ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                         size_t header_length, const void *buffer, size_t count,
                                         const ucp_request_param_t *param) {
    ucs_status_ptr_t (*send)(ucp_ep_h, unsigned, const void *, size_t, const void *, size_t,
                             const ucp_request_param_t *) = NULL;
    *(void **)&send = own("ucp_am_send_nbx");
    const bool of_device = (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) != 0 &&
                           param->memory_type == UCS_MEMORY_TYPE_CUDA;
    if (!of_device) return send(ep, id, header, header_length, buffer, count, param);
    struct copied *copied = malloc(sizeof *copied);
    if (copied == NULL) die("no memory");
    *copied = (struct copied){
        .bytes = copy_from_device(buffer, count), .done = param->cb.send, .user = param->user_data};
    ucp_request_param_t of_host = *param;
    of_host.op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    of_host.cb.send = sent;
    of_host.user_data = copied;
    mark(buffer, count, ep);
    ucs_status_ptr_t request = send(ep, id, header, header_length, copied->bytes, count, &of_host);
    if (!UCS_PTR_IS_PTR(request)) {
        free(copied->bytes);
        free(copied);
    }
    return request;
}
