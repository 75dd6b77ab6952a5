/* simt.cuh - the block that runs now: its threads, who waits where, who may run next.
 *
 * simt.cpp runs grids block by block and schedules the threads of a block; simt_sync.cpp is what
 * threads wait at. A thread runs until it waits or ends; the next one is the queue's first, or a
 * random one (CUDA_ON_CPU_ORDER). When none can go on and not all have ended, that is the report of
 * a divergent barrier.
 *
 * One kernel runs at a time in a process: device_section() (device_memory.cuh) is the lock, so
 * this state needs none, and is global because CUDA's own interface is.
 */
#ifndef RUBATO_TESTS_SIMT_CUH
#define RUBATO_TESTS_SIMT_CUH

#include "cuda_on_cpu.cuh"
#include "fiber.cuh"

#include <atomic>
#include <string>

namespace cuda_on_cpu {

enum { THREADS_MAX = 1024, WARPS_MAX = THREADS_MAX / 32 };
enum { SHARED_DEFAULT = 48 << 10, SHARED_MAX = 227 << 10 }; /* dynamic, bytes a block */

enum thread_state { THREAD_NEW, THREAD_READY, THREAD_AT_BARRIER, THREAD_AT_WARP, THREAD_ENDED };

struct cuda_thread {
    uint3 index;
    unsigned linear, lane, warp;
    enum thread_state state;
    struct fiber *fiber;
    struct location at; /* where it waits */
    enum barrier_kind barrier;
    int predicate;         /* of the barrier */
    struct warp_call call; /* of the warp's collective */
    uint64_t result;
    unsigned syncs;            /* its __syncwarp() calls so far in this block */
    unsigned peers, peers_odd; /* who met at the last one; whose count was odd before */
};

struct block {
    struct cuda_thread threads[THREADS_MAX];
    int count, alive, at_barrier;
    unsigned barriers;                /* passed so far */
    unsigned warp_waiting[WARPS_MAX]; /* lanes at a collective */
    unsigned warp_ended[WARPS_MAX];   /* lanes that have ended or never were */
    struct cuda_thread *current;      /* nullptr between threads */
};
extern struct block block;

/* Runs the grid to its end. In a device_section() only. */
void run_grid(const struct launch &launch);

/* Called by a thread that waits: returns when it may go on. */
void thread_wait(void);

/* The threads first .. end - 1 that are in `state` (and, for lanes, in `lanes`) may run. */
void threads_ready(int first, int end, enum thread_state state, unsigned lanes);

/* A thread has ended: whom does that let go on? (simt_sync.cpp) */
void warp_thread_ended(const struct cuda_thread *thread);
void barrier_try_release(void);
const char *warp_kind_name(enum warp_kind kind);

/* The name of the kernel that runs, for reports; nullptr when none does. */
extern std::atomic<const void *> running_kernel;
extern std::atomic<double> running_since; /* monotonic seconds */
extern thread_local bool in_kernel;       /* this host thread runs it */

/* "kernel scale_kernel(float*, int) block (0,0,0) thread (5,0,0)" */
std::string running_place(void);

/* An environment variable, or what stands for it when it is absent or empty. */
const char *setting(const char *name, const char *otherwise);
/* A number from it, and a generator that starts from CUDA_ON_CPU_SEED. */
double setting_number(const char *name, double otherwise);
uint64_t random_next(uint64_t *state);
uint64_t random_seeded(uint64_t stream);
double seconds_now(void);

} // namespace cuda_on_cpu

#endif
