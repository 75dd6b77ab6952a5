/* group_nccl.c - a communicator a member, and a watchdog for all.
 *
 * A member is stuck either in a call of NCCL, which connects the members at their first
 * collectives, or in group_sync behind a kernel of NCCL that waits for the others'. Both note when
 * they began. The watchdog, which touches no queue, looks at that a few times in the group's time,
 * and asks NCCL for errors; when a member has waited for too long, it aborts all communicators,
 * which ends what they wait for. Should a member be stuck even then, it ends the process.
 *
 * NCCL may hang as well where it makes, aborts or destroys the communicators, and nothing ends such
 * a call. So a thread of its own makes it, and who wants it waits for a limited time (call_apart).
 * Without communicators, or with members that wait behind some, there is no way on: the process
 * ends. At the end of all work there is: what hangs is left behind.
 */
#include "kernels/cuda/group_nccl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/device_cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NCCL_LIBRARY "libnccl.so.2"

/* NCCL's own numbers: ncclDataType_t's ncclInt8 and ncclFloat32, ncclRedOp_t's ncclSum. */
enum { NCCL_INT8 = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

enum { CALLS_MAX = 256 }; /* in a group of NCCL's */

/* The usual causes of a hang, and what tells more. */
#define ADVICE                                                                                     \
    "NCCL_DEBUG=INFO shows where; NCCL_P2P_DISABLE=1 may help (an IOMMU between the devices), or " \
    "more room in /dev/shm"

/* ncclComm_t is a pointer, ncclResult_t 0 is success. */
struct nccl_calls {
    int (*init_all)(void **comms, int count, const int *devices);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *error);
    const char *(*error_text)(int error);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*reduce)(const void *from, void *to, size_t count, int type, int operation, int root,
                  void *comm, cudaStream_t stream);
    int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm,
                     cudaStream_t stream);
    int (*gather)(const void *from, void *to, size_t count, int type, void *comm,
                  cudaStream_t stream);
};

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {{"ncclCommInitAll", offsetof(struct nccl_calls, init_all)},
               {"ncclCommDestroy", offsetof(struct nccl_calls, destroy)},
               {"ncclCommAbort", offsetof(struct nccl_calls, abort)},
               {"ncclCommGetAsyncError", offsetof(struct nccl_calls, async_error)},
               {"ncclGetErrorString", offsetof(struct nccl_calls, error_text)},
               {"ncclGroupStart", offsetof(struct nccl_calls, group_start)},
               {"ncclGroupEnd", offsetof(struct nccl_calls, group_end)},
               {"ncclReduce", offsetof(struct nccl_calls, reduce)},
               {"ncclBroadcast", offsetof(struct nccl_calls, broadcast)},
               {"ncclAllGather", offsetof(struct nccl_calls, gather)}};

struct member {
    struct device *device;
    pthread_mutex_t lock;  /* of the communicator, during calls */
    _Atomic(void *) comm;  /* NULL: aborted */
    atomic_llong since_ns; /* the call or the wait that it is in; 0: none */
};

struct group_cuda {
    struct group group;
    void *library;
    struct nccl_calls calls;
    struct member members[GROUP_MAX];
    int timeout_ms;
    int open_error;      /* what ncclCommInitAll returned */
    atomic_int status;   /* OK until the group ends */
    atomic_bool aborted; /* somebody aborts, or has aborted, the communicators */
    pthread_t watchdog;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool closing;
    void (*apart)(struct group_cuda *cuda); /* what call_apart() waits for; NULL: it is done */
};

static struct group_cuda *cuda_of(struct group *group) {
    return (struct group_cuda *)(void *)group;
}

/* ---- calls that may hang */

/* With the lock. False: the time has come. */
static bool wait_changed(struct group_cuda *cuda, int64_t wake_ns) {
    struct timespec wake = {.tv_sec = (time_t)(wake_ns / CLOCK_S),
                            .tv_nsec = (long)(wake_ns % CLOCK_S)};
    return pthread_cond_timedwait(&cuda->changed, &cuda->lock, &wake) != ETIMEDOUT;
}

/* NCCL returns to the thread's current device, which it would otherwise take from other users. */
static void *apart_main(void *argument) {
    struct group_cuda *cuda = argument;
    struct device *device = cuda->members[0].device;
    device->backend->enter(device);
    cuda->apart(cuda);
    pthread_mutex_lock(&cuda->lock);
    cuda->apart = NULL;
    pthread_cond_broadcast(&cuda->changed);
    pthread_mutex_unlock(&cuda->lock);
    return NULL;
}

/* Whether the call has come back in time; else it goes on with the group, which must not be freed.
 * One at a time. */
static bool call_apart(struct group_cuda *cuda, void (*call)(struct group_cuda *cuda),
                       int limit_ms) {
    const int64_t end_ns = clock_now_ns() + limit_ms * CLOCK_MS;
    bool in_time = true;
    pthread_t thread;
    cuda->apart = call;
    if (pthread_create(&thread, NULL, apart_main, cuda) != 0) {
        (void)apart_main(cuda); /* without a limit rather than not at all */
        return true;
    }
    pthread_mutex_lock(&cuda->lock);
    while (cuda->apart && in_time)
        in_time = wait_changed(cuda, end_ns);
    const bool done = cuda->apart == NULL;
    pthread_mutex_unlock(&cuda->lock);
    if (done)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
    return done;
}

static void log_hang(const struct group_cuda *cuda, enum log_level level, const char *call,
                     int limit_ms, const char *outcome) {
    char devices[8 * GROUP_MAX] = "";
    size_t end = 0;
    for (int i = 0; i < cuda->group.count && end < sizeof devices; i++)
        end += (size_t)snprintf(devices + end, sizeof devices - end, "%s%d", i > 0 ? "," : "",
                                cuda->members[i].device->index);
    log_write(level, "NCCL hangs: %s of cuda:%s has not returned in %d ms; %s; " ADVICE, call,
              devices, limit_ms, outcome);
}

static _Noreturn void end_process(void) {
    _exit((int)status_exit_code(STATUS_DEVICE));
}

/* ---- how a group ends */

/* That an abort has to be done in, and then a member has to come back in. */
static int stuck_ms(const struct group_cuda *cuda) {
    return cuda->timeout_ms / 2;
}

/* A member in a call of NCCL has the lock. One that has it for long is what is to be freed, which
 * NCCL does when it is aborted from outside. */
static void abort_members(struct group_cuda *cuda) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec++;
    for (int i = 0; i < cuda->group.count; i++) {
        struct member *member = &cuda->members[i];
        bool locked = pthread_mutex_timedlock(&member->lock, &deadline) == 0;
        void *comm = atomic_exchange(&member->comm, NULL);
        if (comm) (void)cuda->calls.abort(comm);
        if (locked) pthread_mutex_unlock(&member->lock);
    }
}

/* The first one's reason counts, and is logged by it. */
static bool end_group(struct group_cuda *cuda, enum status status) {
    int ok = STATUS_OK;
    return atomic_compare_exchange_strong(&cuda->status, &ok, (int)status);
}

static void abort_all(struct group_cuda *cuda) {
    if (atomic_exchange(&cuda->aborted, true)) return;
    if (call_apart(cuda, abort_members, stuck_ms(cuda))) return;
    log_hang(cuda, LOG_ERROR, "ncclCommAbort", stuck_ms(cuda), "the process ends");
    end_process();
}

static void end_by_nccl(struct group_cuda *cuda, const struct member *member, const char *what,
                        int error) {
    if (end_group(cuda, STATUS_DEVICE))
        log_error("cuda:%d (%s): %s among %d devices failed: NCCL: %s", member->device->index,
                  member->device->name, what, cuda->group.count, cuda->calls.error_text(error));
    abort_all(cuda);
}

/* ---- the watchdog */

static void check_errors(struct group_cuda *cuda, struct member *member) {
    int error = 0;
    if (pthread_mutex_trylock(&member->lock) != 0) return; /* in a call, whose time is limited */
    bool failed = member->comm && cuda->calls.async_error(member->comm, &error) == 0 && error != 0;
    pthread_mutex_unlock(&member->lock);
    if (failed) end_by_nccl(cuda, member, "a collective", error);
}

static void check_time(struct group_cuda *cuda, const struct member *member, int64_t now_ns) {
    const int64_t since_ns = atomic_load(&member->since_ns);
    const int64_t late_ns = cuda->timeout_ms * CLOCK_MS;
    if (since_ns == 0 || now_ns - since_ns <= late_ns) return;
    if (end_group(cuda, STATUS_TIMEOUT))
        log_error(
            "cuda:%d (%s) waited %d ms for the other %d of its group in vain; if none of these "
            "is late, NCCL hangs: " ADVICE,
            member->device->index, member->device->name, cuda->timeout_ms, cuda->group.count - 1);
    abort_all(cuda);
    if (now_ns - since_ns <= late_ns + stuck_ms(cuda) * CLOCK_MS) return;
    log_error("cuda:%d (%s) is stuck, also after its group was aborted: the process ends",
              member->device->index, member->device->name);
    end_process();
}

static void *watch(void *argument) {
    struct group_cuda *cuda = argument;
    pthread_mutex_lock(&cuda->lock);
    while (!cuda->closing) {
        (void)wait_changed(cuda, clock_now_ns() + cuda->timeout_ms * CLOCK_MS / 4);
        if (cuda->closing) break;
        pthread_mutex_unlock(&cuda->lock);
        for (int i = 0; i < cuda->group.count; i++) {
            check_errors(cuda, &cuda->members[i]);
            check_time(cuda, &cuda->members[i], clock_now_ns());
        }
        pthread_mutex_lock(&cuda->lock);
    }
    pthread_mutex_unlock(&cuda->lock);
    return NULL;
}

/* ---- opening */

static enum status load_nccl(struct group_cuda *cuda) {
    cuda->library = dlopen(NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!cuda->library) {
        log_error("a group of CUDA devices needs NCCL (NVIDIA's package libnccl2), which cannot be "
                  "loaded: %s; use one device a worker, or set LD_LIBRARY_PATH to where it is",
                  dlerror());
        return STATUS_UNSUPPORTED;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(cuda->library, symbols[i].name);
        if (!symbol) {
            log_error("a group of CUDA devices needs a later NCCL: %s has no %s", NCCL_LIBRARY,
                      symbols[i].name);
            return STATUS_UNSUPPORTED;
        }
        /* As POSIX has it: ISO C does not convert a pointer to data into one to a function. */
        memcpy((char *)&cuda->calls + symbols[i].offset, &symbol, sizeof symbol);
    }
    return STATUS_OK;
}

static void make_comms(struct group_cuda *cuda) {
    void *comms[GROUP_MAX] = {NULL};
    int indices[GROUP_MAX];
    for (int i = 0; i < cuda->group.count; i++)
        indices[i] = cuda->members[i].device->index;
    cuda->open_error = cuda->calls.init_all(comms, cuda->group.count, indices);
    for (int i = 0; i < cuda->group.count && cuda->open_error == 0; i++)
        cuda->members[i].comm = comms[i];
}

static enum status open_comms(struct group_cuda *cuda) {
    if (!call_apart(cuda, make_comms, cuda->timeout_ms)) {
        log_hang(cuda, LOG_ERROR, "ncclCommInitAll", cuda->timeout_ms, "the process ends");
        end_process();
    }
    if (cuda->open_error == 0) return STATUS_OK;
    log_error("no group of %d CUDA devices: NCCL: %s", cuda->group.count,
              cuda->calls.error_text(cuda->open_error));
    return STATUS_DEVICE;
}

static enum status start_watchdog(struct group_cuda *cuda) {
    int error = pthread_create(&cuda->watchdog, NULL, watch, cuda);
    if (error == 0) return STATUS_OK;
    log_error("no thread to watch a group of CUDA devices: %s", strerror(error));
    return STATUS_MEMORY;
}

static struct group_cuda *make_group(struct device *const *devices, int count, int timeout_ms) {
    struct group_cuda *cuda = memory_zeroed(1, sizeof *cuda);
    pthread_condattr_t monotonic;
    cuda->group = (struct group){.ops = &group_nccl, .count = count};
    cuda->timeout_ms = timeout_ms;
    pthread_mutex_init(&cuda->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&cuda->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int i = 0; i < count; i++) {
        cuda->members[i].device = devices[i];
        pthread_mutex_init(&cuda->members[i].lock, NULL);
    }
    return cuda;
}

static void destroy_comms(struct group_cuda *cuda) {
    for (int i = 0; i < cuda->group.count; i++) {
        if (cuda->members[i].comm) (void)cuda->calls.destroy(cuda->members[i].comm);
    }
}

/* The library stays loaded: it may have threads of its own. Nothing that the group has made is
 * lost when this hangs, so it is no error. */
static enum status free_group(struct group_cuda *cuda) {
    if (!call_apart(cuda, destroy_comms, cuda->timeout_ms)) {
        log_hang(cuda, LOG_WARN, "ncclCommDestroy", cuda->timeout_ms, "it is left behind");
        return STATUS_TIMEOUT;
    }
    for (int i = 0; i < cuda->group.count; i++)
        pthread_mutex_destroy(&cuda->members[i].lock);
    pthread_cond_destroy(&cuda->changed);
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
    return STATUS_OK;
}

static enum status open_group(struct group **group, struct device *const *devices, int count,
                              int timeout_ms) {
    struct group_cuda *cuda = make_group(devices, count, timeout_ms);
    enum status status = load_nccl(cuda);
    if (status == STATUS_OK) status = open_comms(cuda);
    if (status == STATUS_OK) status = start_watchdog(cuda);
    if (status != STATUS_OK) {
        (void)free_group(cuda);
        return status;
    }
    *group = &cuda->group;
    return STATUS_OK;
}

static enum status close_group(struct group *group) {
    struct group_cuda *cuda = cuda_of(group);
    pthread_mutex_lock(&cuda->lock);
    cuda->closing = true;
    pthread_cond_broadcast(&cuda->changed);
    pthread_mutex_unlock(&cuda->lock);
    pthread_join(cuda->watchdog, NULL);
    return free_group(cuda);
}

/* ---- collectives */

/* False: the group has ended. Else the communicator is this call's until end_call(). */
static bool begin_call(struct member *member) {
    pthread_mutex_lock(&member->lock);
    atomic_store(&member->since_ns, clock_now_ns());
    if (member->comm) return true;
    atomic_store(&member->since_ns, 0);
    pthread_mutex_unlock(&member->lock);
    return false;
}

static void end_call(struct group_cuda *cuda, struct member *member, int error, const char *what) {
    atomic_store(&member->since_ns, 0);
    pthread_mutex_unlock(&member->lock);
    if (error != 0) end_by_nccl(cuda, member, what, error);
}

/* A sum at its root, or the root's values at all. */
static int queue_piece(const struct group_cuda *cuda, const struct member *member,
                       const struct group_piece *piece, bool sum, cudaStream_t stream) {
    size_t count = (size_t)piece->count;
    float *values = piece->values;
    if (sum)
        return cuda->calls.reduce(values, values, count, NCCL_FLOAT32, NCCL_SUM, piece->root,
                                  member->comm, stream);
    return cuda->calls.broadcast(values, values, count, NCCL_FLOAT32, piece->root, member->comm,
                                 stream);
}

/* As groups of NCCL's: a kernel has all roots of one. NCCL keeps a plan of each call in a group, so
 * these are not too long. */
static void queue_pieces(struct group *group, int rank, enum device_queue queue,
                         const struct group_piece *pieces, uint64_t count, bool sum) {
    struct group_cuda *cuda = cuda_of(group);
    struct member *member = &cuda->members[rank];
    if (!begin_call(member)) return;
    cudaStream_t stream = device_cuda_stream_of(member->device, queue);
    int error = 0;
    for (uint64_t i = 0; i < count && error == 0;) {
        uint64_t end = count - i > CALLS_MAX ? i + CALLS_MAX : count;
        error = cuda->calls.group_start();
        bool started = error == 0;
        for (; i < end && error == 0; i++)
            error = queue_piece(cuda, member, &pieces[i], sum, stream);
        int ended = started ? cuda->calls.group_end() : 0;
        error = error != 0 ? error : ended;
    }
    end_call(cuda, member, error, sum ? "a sum" : "a spread");
}

static void sum_to(struct group *group, int rank, enum device_queue queue,
                   const struct group_piece *sums, uint64_t count) {
    queue_pieces(group, rank, queue, sums, count, true);
}

static void spread(struct group *group, int rank, enum device_queue queue,
                   const struct group_piece *pieces, uint64_t count) {
    queue_pieces(group, rank, queue, pieces, count, false);
}

static void gather(struct group *group, int rank, enum device_queue queue, const void *from,
                   void *to, size_t bytes) {
    struct group_cuda *cuda = cuda_of(group);
    struct member *member = &cuda->members[rank];
    if (!begin_call(member)) return;
    int error = cuda->calls.gather(from, to, bytes, NCCL_INT8, member->comm,
                                   device_cuda_stream_of(member->device, queue));
    end_call(cuda, member, error, "a gather");
}

static enum status sync_group(struct group *group, int rank, const struct device_event *event) {
    struct group_cuda *cuda = cuda_of(group);
    struct member *member = &cuda->members[rank];
    struct device *device = member->device;
    atomic_store(&member->since_ns, clock_now_ns());
    enum status status = device->backend->event_sync(device, event);
    atomic_store(&member->since_ns, 0);
    if (status == STATUS_OK)
        check_errors(cuda, member);
    else if (end_group(cuda, status)) /* the device has told why */
        abort_all(cuda);
    return (enum status)atomic_load(&cuda->status);
}

static enum status group_state(struct group *group) {
    return (enum status)atomic_load(&cuda_of(group)->status);
}

static void abort_group(struct group *group, int rank) {
    struct group_cuda *cuda = cuda_of(group);
    const struct device *device = cuda->members[rank].device;
    if (end_group(cuda, STATUS_PEER_LOST))
        log_error("cuda:%d (%s) of a group of %d devices gave up", device->index, device->name,
                  group->count);
    abort_all(cuda);
}

const struct group_ops group_nccl = {.open = open_group,
                                     .close = close_group,
                                     .sum_to = sum_to,
                                     .spread = spread,
                                     .gather = gather,
                                     .sync = sync_group,
                                     .status = group_state,
                                     .abort = abort_group};
