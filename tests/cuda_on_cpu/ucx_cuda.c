/* ucx_cuda.c - in the place of a UCX that was built with CUDA, on a machine with RDMA: preloaded,
 * it makes the one that is here say that it knows a CUDA device's memory, and send from there, by
 * way of a copy, and by TCP whatever the transports that it is given.
 *
 * A program that touches such a payload itself faults, since the host cannot access the stand-in's
 * device memory. UCX_CUDA_MARKS names a file that gets a line for each payload.
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

static void mark(size_t bytes) {
    const char *path = getenv("UCX_CUDA_MARKS");
    FILE *file = path != NULL ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    (void)fprintf(file, "%zu\n", bytes);
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
    return modify(config, name, strcmp(name, "TLS") == 0 ? "tcp" : value);
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
    mark(count);
    ucs_status_ptr_t request = send(ep, id, header, header_length, copied->bytes, count, &of_host);
    if (!UCS_PTR_IS_PTR(request)) {
        free(copied->bytes);
        free(copied);
    }
    return request;
}
