/* streams.cpp - see streams.cuh; and the API's calls for streams, events and host functions. */
#include "streams.cuh"

#include "device_memory.cuh"
#include "simt.cuh"

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <vector>

struct work {
    std::function<void()> run;
    bool on_device;
};

struct CUstream_st {
    int device;
    uint64_t number; // in the order of making, from 0
    std::deque<struct work> queue;
    uint64_t queued, done; // pieces of work so far
    bool running;          // a piece, by `runner`, with the lock released
    pthread_t runner;
    uint64_t pump_saw; // done + 1 when the pump last looked
};

struct CUevent_st {
    int device;
    cudaStream_t stream; // nullptr: not recorded
    uint64_t position;   // done when the stream's count of done work is at least this
    std::shared_ptr<double> seconds;
};

namespace cuda_on_cpu {

enum when { WHEN_LAZY, WHEN_EAGER, WHEN_RANDOM };

static enum when when_setting() {
    std::string text = setting("CUDA_ON_CPU_STREAMS", "lazy");
    if (text == "lazy") return WHEN_LAZY;
    if (text == "eager") return WHEN_EAGER;
    if (text == "random") return WHEN_RANDOM;
    die("CUDA_ON_CPU_STREAMS=%s; allowed are lazy, eager, random", text.c_str());
}

// CUDA_ON_CPU_FAIL=STREAM:WORK: this piece of a stream's work, from 1, fails, as a launch does, and
// with it all that comes later anywhere.
struct failure {
    uint64_t stream = 0, work = 0; // 0: none
    bool failed = false;
};

static struct failure failure_setting() {
    struct failure failure;
    std::string text = setting("CUDA_ON_CPU_FAIL", "");
    unsigned long long stream = 0, work = 0;
    if (text.empty()) return failure;
    if (sscanf(text.c_str(), "%llu:%llu", &stream, &work) != 2 || work == 0)
        die("CUDA_ON_CPU_FAIL=%s; wanted is STREAM:WORK", text.c_str());
    failure.stream = stream;
    failure.work = work;
    return failure;
}

struct stream_table {
    std::mutex lock; // of all streams and events
    uint64_t made = 0;
    struct failure failure = failure_setting();
    std::condition_variable changed;
    std::set<cudaStream_t> live;
    // Kept: another thread may still wait for its work, and a stale handle must stay wrong.
    std::set<cudaStream_t> destroyed;
    enum when when = when_setting();
    uint64_t random = random_seeded(2);
};
// Made when the library is loaded, ahead of all threads; never freed, since threads may still run
// when the process ends.
static struct stream_table *const streams = new struct stream_table;
using lock_hold = std::unique_lock<std::mutex>;

// A stream that the program may use; else a report, or an error as CUDA gives it.
static bool stream_known(cudaStream_t stream) {
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        die("the default stream is not supported: create one with cudaStreamNonBlocking");
    return streams->live.count(stream) > 0;
}

static void run_work(struct work &work) {
    if (work.on_device)
        device_section(work.run);
    else
        work.run();
}

static cudaError_t outcome() {
    return streams->failure.failed ? note_error(cudaErrorLaunchFailure) : cudaSuccess;
}

// Whether the stream's next piece of work fails, or is behind one that did.
static bool next_fails(cudaStream_t stream) {
    struct failure *failure = &streams->failure;
    if (stream->number == failure->stream && stream->done + 1 == failure->work)
        failure->failed = true;
    return failure->failed;
}

// Runs the stream's work up to `position`.
static void drain(lock_hold &hold, cudaStream_t stream, uint64_t position) {
    while (stream->done < position) {
        if (stream->running) {
            if (pthread_equal(stream->runner, pthread_self())) die("a stream waits for itself");
            streams->changed.wait(hold);
            continue;
        }
        struct work work = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->running = true;
        stream->runner = pthread_self();
        const bool fails = next_fails(stream);
        hold.unlock();
        if (!fails) run_work(work);
        hold.lock();
        stream->running = false;
        stream->done++;
        streams->changed.notify_all();
    }
}

static void drain_all(cudaStream_t stream) {
    lock_hold hold(streams->lock);
    if (streams->live.count(stream) > 0) drain(hold, stream, stream->queued);
}

static std::vector<cudaStream_t> live_streams() {
    lock_hold hold(streams->lock);
    return {streams->live.begin(), streams->live.end()};
}

void streams_drain_device(int device) {
    for (cudaStream_t stream : live_streams()) {
        if (stream_device(stream) == device) drain_all(stream);
    }
}

int stream_device(cudaStream_t stream) {
    lock_hold hold(streams->lock);
    return stream_known(stream) ? stream->device : -1;
}

cudaError_t enqueue_work(cudaStream_t stream, bool on_device, std::function<void()> work) {
    lock_hold hold(streams->lock);
    if (!stream_known(stream)) return note_error(cudaErrorInvalidResourceHandle);
    stream->queue.push_back({std::move(work), on_device});
    stream->queued++;
    uint64_t random = random_next(&streams->random), ahead = stream->queued - stream->done;
    if (streams->when == WHEN_EAGER) drain(hold, stream, stream->queued);
    if (streams->when == WHEN_RANDOM && !stream->running && random % 2 == 0)
        drain(hold, stream, stream->done + random / 2 % (ahead + 1));
    return outcome();
}

// A query makes one step, so that a loop of queries ends.
static cudaError_t query(lock_hold &hold, cudaStream_t stream, uint64_t position) {
    if (stream->done >= position || streams->failure.failed) return outcome();
    if (!stream->running) drain(hold, stream, stream->done + 1);
    return cudaErrorNotReady;
}

// ---- the thread that goes on where nobody waits, and watches kernels

static void check_kernel_time() {
    static const double limit = setting_number("CUDA_ON_CPU_TIMEOUT", 120.0);
    double since = running_since;
    if (since == 0.0 || seconds_now() - since < limit) return;
    fprintf(stderr,
            "cuda-on-cpu: no end after %g s (a spin on another thread never ends here): %s\n",
            limit, running_place().c_str());
    fflush(nullptr);
    abort();
}

static void *pump(void *) {
    for (;;) {
        usleep(100 * 1000);
        check_kernel_time();
        for (cudaStream_t stream : live_streams()) {
            lock_hold hold(streams->lock);
            if (streams->live.count(stream) == 0) continue;
            bool idle = !stream->queue.empty() && !stream->running;
            uint64_t seen = stream->pump_saw;
            stream->pump_saw = stream->done + 1;
            if (idle && seen == stream->done + 1) drain(hold, stream, stream->done + 1);
        }
    }
    return nullptr;
}

static void start_pump() {
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, pump, nullptr) != 0) die("no thread for the streams");
        pthread_detach(thread);
    });
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {

// Priorities are taken and change nothing.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    if (flags != cudaStreamNonBlocking)
        die("cudaStreamCreate: only cudaStreamNonBlocking is supported");
    start_pump();
    lock_hold hold(streams->lock);
    *stream = new CUstream_st{};
    (*stream)->device = device_current();
    (*stream)->number = streams->made++;
    streams->live.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    lock_hold hold(streams->lock);
    if (!stream_known(stream)) return note_error(cudaErrorInvalidResourceHandle);
    drain(hold, stream, stream->queued);
    streams->live.erase(stream);
    streams->destroyed.insert(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    lock_hold hold(streams->lock);
    if (!stream_known(stream)) return note_error(cudaErrorInvalidResourceHandle);
    drain(hold, stream, stream->queued);
    return outcome();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    lock_hold hold(streams->lock);
    if (!stream_known(stream)) return note_error(cudaErrorInvalidResourceHandle);
    return query(hold, stream, stream->queued);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new CUevent_st{};
    (*event)->device = device_current();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (stream_device(stream) != event->device) return note_error(cudaErrorInvalidResourceHandle);
    auto seconds = std::make_shared<double>(0.0);
    cudaError_t error = enqueue_work(stream, false, [seconds] { *seconds = seconds_now(); });
    if (error != cudaSuccess) return error;
    lock_hold hold(streams->lock);
    event->stream = stream;
    event->position = stream->queued;
    event->seconds = seconds;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    cudaStream_t other;
    uint64_t position;
    {
        lock_hold hold(streams->lock);
        other = event->stream;
        position = event->position;
    }
    if (other == nullptr || other == stream) return cudaSuccess;
    return enqueue_work(stream, false, [other, position] {
        lock_hold hold(streams->lock);
        if (streams->live.count(other) > 0) drain(hold, other, position);
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    lock_hold hold(streams->lock);
    if (streams->live.count(event->stream) > 0) drain(hold, event->stream, event->position);
    return outcome();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    lock_hold hold(streams->lock);
    if (streams->live.count(event->stream) == 0) return cudaSuccess;
    return query(hold, event->stream, event->position);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    lock_hold hold(streams->lock);
    for (cudaEvent_t event : {start, end}) {
        if (event->stream == nullptr) return note_error(cudaErrorInvalidResourceHandle);
        bool live = streams->live.count(event->stream) > 0;
        if (live && event->stream->done < event->position) return cudaErrorNotReady;
    }
    *ms = (float)((*end->seconds - *start->seconds) * 1e3);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
    return enqueue_work(stream, false, [function, argument] { function(argument); });
}

} // extern "C"
