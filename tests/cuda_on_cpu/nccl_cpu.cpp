/* nccl_cpu.cpp - the part of NCCL that the project uses, among threads or processes of a machine.
 *
 * The ranks of a communicator map one shared-memory file, named by the unique id. A collective goes
 * in rounds: each rank copies a piece of its data to its place in the file, all meet, each rank
 * takes what it needs from all places, all meet again. Sums are in double, in rank order, so every
 * rank has the same bits; they need not be NCCL's. A rank waits 200 s at most for the others.
 *
 * A rank is a thread or a process: one host thread that runs several ranks would wait for itself.
 */
#include "device_memory.cuh"
#include "simt.cuh"
#include "streams.cuh"

#include <algorithm>
#include <fcntl.h>
#include <mutex>
#include <nccl.h>
#include <set>
#include <stdio.h>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace cuda_on_cpu {

enum { PIECE_BYTES = 1 << 18, RANKS_MAX = 16 };
static const double WAIT_SECONDS = 200.0; // more than the project does, unless told

// All zero at first, as a new file is.
struct meeting_place {
    std::atomic<int> arrived;
    std::atomic<unsigned> meetings;
    char pieces[RANKS_MAX][PIECE_BYTES];
};

} // namespace cuda_on_cpu

struct ncclComm {
    cuda_on_cpu::meeting_place *place;
    int count, rank;
    std::atomic<bool> aborted, failed;
};

namespace cuda_on_cpu {

// ---- faults

// CUDA_ON_CPU_NCCL=KIND or KIND:N. N is a collective of this process, from 1, as ranks call them.
struct fault {
    std::string kind;
    uint64_t at = 0;
    std::atomic<uint64_t> collectives{0};
};

static bool fault_known(const struct fault &fault) {
    if (fault.kind == "fail" || fault.kind == "async" || fault.kind == "hang") return fault.at > 0;
    return fault.kind == "init" || fault.kind == "abort" || fault.kind == "destroy";
}

static struct fault *fault_setting() {
    struct fault *fault = new struct fault;
    const std::string text = setting("CUDA_ON_CPU_NCCL", "");
    const size_t colon = text.find(':');
    fault->kind = text.substr(0, colon);
    if (colon != std::string::npos) fault->at = strtoull(text.c_str() + colon + 1, nullptr, 10);
    if (!text.empty() && !fault_known(*fault))
        die("CUDA_ON_CPU_NCCL=%s; allowed are fail:N, async:N, hang:N, init, abort, destroy",
            text.c_str());
    return fault;
}

static struct fault *const planted = fault_setting();

// A call that never returns, if it is the one of the setting.
static void may_hang(const char *call) {
    while (planted->kind == call)
        pause();
}

// ---- meetings

// False: this rank's communicator was aborted; the others' wait on, as NCCL's do.
static bool meet(const struct ncclComm *comm) {
    struct meeting_place *place = comm->place;
    unsigned before = place->meetings;
    if (++place->arrived == comm->count) {
        place->arrived = 0;
        place->meetings++;
        return true;
    }
    double deadline = seconds_now() + WAIT_SECONDS;
    while (place->meetings == before) {
        if (comm->aborted) return false;
        if (seconds_now() > deadline)
            die("nccl: rank %d of %d waited %g s for the others (one thread for several ranks?)",
                comm->rank, comm->count, WAIT_SECONDS);
        usleep(50);
    }
    return true;
}

// As a kernel of NCCL that another rank's will not meet.
static void wait_aborted(const struct ncclComm *comm) {
    double deadline = seconds_now() + WAIT_SECONDS;
    while (!comm->aborted) {
        if (seconds_now() > deadline)
            die("nccl: rank %d was not aborted within %g s", comm->rank, WAIT_SECONDS);
        usleep(50);
    }
}

// ---- values

static bool type_known(ncclDataType_t type) {
    return type == ncclFloat32 || type == ncclBfloat16 || type == ncclFloat16 || type == ncclInt8 ||
           type == ncclUint8 || type == ncclInt32 || type == ncclFloat64;
}

static size_t value_bytes(ncclDataType_t type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclFloat64:
        return 8;
    default:
        return 4;
    }
}

static double get(const char *values, ncclDataType_t type, size_t i) {
    switch (type) {
    case ncclInt8:
        return ((const int8_t *)values)[i];
    case ncclUint8:
        return ((const uint8_t *)values)[i];
    case ncclFloat16:
        return (double)__half2float(((const __half *)values)[i]);
    case ncclBfloat16:
        return (double)__bfloat162float(((const __nv_bfloat16 *)values)[i]);
    case ncclInt32:
        return ((const int32_t *)values)[i];
    case ncclFloat64:
        return ((const double *)values)[i];
    default:
        return (double)((const float *)values)[i];
    }
}

static void set(char *values, ncclDataType_t type, size_t i, double value) {
    switch (type) {
    case ncclInt8:
        ((int8_t *)values)[i] = (int8_t)value;
        break;
    case ncclUint8:
        ((uint8_t *)values)[i] = (uint8_t)value;
        break;
    case ncclFloat16:
        ((__half *)values)[i] = __float2half_rn((float)value);
        break;
    case ncclBfloat16:
        ((__nv_bfloat16 *)values)[i] = __float2bfloat16_rn((float)value);
        break;
    case ncclInt32:
        ((int32_t *)values)[i] = (int32_t)value;
        break;
    case ncclFloat64:
        ((double *)values)[i] = value;
        break;
    default:
        ((float *)values)[i] = (float)value;
        break;
    }
}

static double combine(ncclRedOp_t operation, double a, double b) {
    switch (operation) {
    case ncclMax:
        return std::max(a, b);
    case ncclMin:
        return std::min(a, b);
    case ncclProd:
        return a * b;
    default:
        return a + b; // ncclSum, ncclAvg
    }
}

// ---- rounds

struct collective {
    const char *from;
    char *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t operation;
};

// Shows from [count] to all ranks, piece by piece; take(offset, n) runs while values offset ..
// offset + n - 1 of every rank lie in the places. A rank that shows nothing has from nullptr.
static void rounds(const struct ncclComm *comm, const struct collective &c,
                   const std::function<void(size_t, size_t)> &take) {
    size_t bytes = value_bytes(c.type), piece = PIECE_BYTES / bytes;
    for (size_t offset = 0; offset < c.count && !comm->aborted; offset += piece) {
        size_t n = std::min(piece, c.count - offset);
        device_section([&] {
            if (c.from != nullptr)
                memcpy(comm->place->pieces[comm->rank], c.from + offset * bytes, n * bytes);
        });
        if (!meet(comm)) return;
        device_section([&] { take(offset, n); });
        if (!meet(comm)) return;
    }
}

// to [n] at `offset` = what all ranks' pieces combine to.
static void reduce_pieces(const struct ncclComm *comm, const struct collective &c, size_t offset,
                          size_t n) {
    for (size_t i = 0; i < n; i++) {
        double value = get(comm->place->pieces[0], c.type, i);
        for (int rank = 1; rank < comm->count; rank++)
            value = combine(c.operation, value, get(comm->place->pieces[rank], c.type, i));
        if (c.operation == ncclAvg) value /= comm->count;
        set(c.to, c.type, offset + i, value);
    }
}

static void gather(const struct ncclComm *comm, const struct collective &c) {
    size_t bytes = value_bytes(c.type);
    rounds(comm, c, [&](size_t offset, size_t n) {
        for (size_t rank = 0; rank < (size_t)comm->count; rank++)
            memcpy(c.to + (rank * c.count + offset) * bytes, comm->place->pieces[rank], n * bytes);
    });
}

static void broadcast(const struct ncclComm *comm, const struct collective &c, int root) {
    size_t bytes = value_bytes(c.type);
    struct collective shown = c;
    if (comm->rank != root) shown.from = nullptr;
    rounds(comm, shown, [&](size_t offset, size_t n) {
        memcpy(c.to + offset * bytes, comm->place->pieces[root], n * bytes);
    });
}

// Collectives are no device_section() of their own: a rank waits inside for others of its process.
static ncclResult_t enqueue(struct ncclComm *comm, cudaStream_t stream, ncclDataType_t type,
                            std::function<void()> work) {
    if (comm->aborted) die("nccl: a call on a communicator that was aborted");
    if (!type_known(type)) return ncclInvalidArgument;
    const uint64_t number = ++planted->collectives;
    if (planted->kind == "fail" && number == planted->at) return ncclSystemError;
    if (number >= planted->at) may_hang("hang");
    if (planted->kind == "async" && number >= planted->at) {
        comm->failed = true;
        work = [comm] { wait_aborted(comm); };
    }
    return enqueue_work(stream, false, std::move(work)) == cudaSuccess ? ncclSuccess
                                                                       : ncclUnhandledCudaError;
}

static ncclResult_t open_comm(ncclComm_t *comm, int count, const ncclUniqueId &id, int rank) {
    int file = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (file < 0) return ncclSystemError;
    void *map = MAP_FAILED;
    if (ftruncate(file, sizeof(struct meeting_place)) == 0)
        map = mmap(nullptr, sizeof(struct meeting_place), PROT_READ | PROT_WRITE, MAP_SHARED, file,
                   0);
    close(file);
    if (map == MAP_FAILED) return ncclSystemError;
    *comm = new ncclComm{(struct meeting_place *)map, count, rank, {false}, {false}};
    return ncclSuccess;
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    *id = {};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(id->internal, sizeof id->internal, "/cuda-on-cpu-%d-%ld", (int)getpid(), now.tv_nsec);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int count, ncclUniqueId id, int rank) {
    if (count < 1 || count > RANKS_MAX || rank < 0 || rank >= count) return ncclInvalidArgument;
    ncclResult_t result = open_comm(comm, count, id, rank);
    if (result != ncclSuccess) return result;
    meet(*comm);
    if (rank == 0) shm_unlink(id.internal);
    return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    ncclUniqueId id;
    may_hang("init");
    ncclResult_t result = ncclGetUniqueId(&id);
    if (count < 1 || count > RANKS_MAX) return ncclInvalidArgument;
    if (std::set<int>(devices, devices + count).size() != (size_t)count) return ncclInvalidUsage;
    for (int rank = 0; rank < count && result == ncclSuccess; rank++)
        result = open_comm(&comms[rank], count, id, rank);
    shm_unlink(id.internal);
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    may_hang("destroy");
    munmap(comm->place, sizeof(struct meeting_place));
    delete comm;
    return ncclSuccess;
}

// Kept, since what is queued still looks at it: that ends as soon as it starts.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    may_hang("abort");
    static std::mutex lock;
    static std::vector<ncclComm_t> *const kept = new std::vector<ncclComm_t>;
    std::lock_guard<std::mutex> hold(lock);
    kept->push_back(comm);
    comm->aborted = true;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    if (comm->aborted) die("nccl: a call on a communicator that was aborted");
    *error = comm->failed ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

// Collectives are queued one by one all the same.
ncclResult_t ncclGroupStart(void) {
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : "an error of the stand-in's nccl";
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    struct collective c = {(const char *)from, (char *)to, count, type, operation};
    return enqueue(comm, stream, type, [comm, c] {
        rounds(comm, c, [&](size_t offset, size_t n) { reduce_pieces(comm, c, offset, n); });
    });
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream) {
    struct collective c = {(const char *)from, (char *)to, count, type, operation};
    return enqueue(comm, stream, type, [comm, c, root] {
        rounds(comm, c, [&](size_t offset, size_t n) {
            if (comm->rank == root) reduce_pieces(comm, c, offset, n);
        });
    });
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    struct collective c = {(const char *)from, (char *)to, count, type, ncclSum};
    return enqueue(comm, stream, type, [comm, c] { gather(comm, c); });
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    struct collective c = {(const char *)from, (char *)to, count, type, ncclSum};
    return enqueue(comm, stream, type, [comm, c, root] { broadcast(comm, c, root); });
}

} // extern "C"
