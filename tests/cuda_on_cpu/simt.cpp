/* simt.cpp - runs a kernel's grid: see simt.cuh. */
#include "simt.cuh"

#include "sanitizer_hooks.cuh"

#include <map>
#include <stdio.h>
#include <utility>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// A kernel's dynamic shared memory, and a tail where an overrun shows.
enum { SHARED_TAIL = 4096, SHARED_CANARY = 64 };
extern "C" __attribute__((
    aligned(128))) unsigned char dynamic_shared[cuda_on_cpu::SHARED_MAX + SHARED_TAIL];
unsigned char dynamic_shared[cuda_on_cpu::SHARED_MAX + SHARED_TAIL];

namespace cuda_on_cpu {

struct block block;
std::atomic<const void *> running_kernel{nullptr};
std::atomic<double> running_since{0.0};
thread_local bool in_kernel;

enum order { ORDER_FORWARD, ORDER_REVERSE, ORDER_RANDOM };

static enum order order_setting() {
    std::string text = setting("CUDA_ON_CPU_ORDER", "forward");
    if (text == "forward") return ORDER_FORWARD;
    if (text == "reverse") return ORDER_REVERSE;
    if (text == "random") return ORDER_RANDOM;
    die("CUDA_ON_CPU_ORDER=%s; allowed are forward, reverse, random", text.c_str());
}

// All that the scheduler keeps beside the block. Made at the first launch and never freed.
struct scheduler {
    enum order order = order_setting();
    uint64_t random = random_seeded(1);
    bool newest_first = false; // of this block, in random order
    struct fiber pool[THREADS_MAX] = {};
    struct fiber *idle[THREADS_MAX];
    int idle_count = 0;
    struct fiber host;
    struct fiber *running = nullptr;
    unsigned queue[THREADS_MAX]; // a ring: each thread is in it at most once
    unsigned head = 0, tail = 0;
    unsigned shift = 0; // TSan: thread i runs on fiber (i + shift) % count
    const std::function<void()> *body = nullptr;
    char start_tag, end_tag; // addresses for the order of host and CUDA threads
};
static struct scheduler *scheduler;

// Libraries register while they are loaded, so the list must be there before any static of ours.
static std::vector<std::pair<char *, char *>> &shared_sections() {
    static auto *sections = new std::vector<std::pair<char *, char *>>;
    return *sections;
}
shared_section::shared_section(char *begin, char *end) {
    if (begin != end) shared_sections().push_back({begin, end});
}

// ---- who runs next

static void queue_push(unsigned linear) {
    scheduler->queue[scheduler->tail++ % THREADS_MAX] = linear;
}

static struct cuda_thread *queue_pop() {
    struct scheduler *s = scheduler;
    if (s->head == s->tail) return nullptr;
    if (s->order == ORDER_RANDOM) {
        // In half of the blocks mostly the newest one, so that one warp runs far ahead of the
        // others: a uniform choice keeps them close together and hides missing barriers.
        uint64_t random = random_next(&s->random);
        if (s->newest_first && (random >> 32 & 15) != 0)
            return &block.threads[s->queue[--s->tail % THREADS_MAX]];
        unsigned other = s->head + (unsigned)(random % (s->tail - s->head));
        std::swap(s->queue[s->head % THREADS_MAX], s->queue[other % THREADS_MAX]);
    }
    return &block.threads[s->queue[s->head++ % THREADS_MAX]];
}

void threads_ready(int first, int end, enum thread_state state, unsigned lanes) {
    for (int i = 0; i < end - first; i++) {
        int at = scheduler->order == ORDER_REVERSE ? end - 1 - i : first + i;
        struct cuda_thread *thread = &block.threads[at];
        if (thread->state != state || (lanes >> thread->lane & 1) == 0) continue;
        if (state != THREAD_NEW) thread->state = THREAD_READY;
        queue_push((unsigned)at);
    }
}

[[noreturn]] static void report_deadlock() {
    std::map<std::string, std::vector<int>> groups;
    for (int i = 0; i < block.count; i++) {
        const struct cuda_thread *thread = &block.threads[i];
        char text[400] = "have returned";
        if (thread->state == THREAD_AT_BARRIER)
            snprintf(text, sizeof text, "wait at __syncthreads, %s:%d", thread->at.file,
                     thread->at.line);
        if (thread->state == THREAD_AT_WARP)
            snprintf(text, sizeof text, "wait at %s(0x%08x), %s:%d",
                     warp_kind_name(thread->call.kind), thread->call.mask, thread->at.file,
                     thread->at.line);
        groups[text].push_back(i);
    }
    for (const auto &group : groups)
        fprintf(stderr, "  %zu threads (linear %d..%d) %s\n", group.second.size(),
                group.second.front(), group.second.back(), group.first.c_str());
    block.current = nullptr;
    die("divergent barrier: no thread of the block can go on");
}

// ---- a thread's life

static void thread_entry();

// Goes on with the next thread, or with the host when all have ended.
static void schedule() {
    struct scheduler *s = scheduler;
    struct cuda_thread *next = queue_pop();
    if (next == nullptr && block.alive > 0) report_deadlock();
    struct fiber *to = &s->host;
    if (next != nullptr) {
        block.current = next;
        threadIdx = next->index;
        if (next->state == THREAD_NEW) {
            // The thread sanitizer: one identity a CUDA thread, another one in the next block.
            next->fiber = WITH_TSAN ? &s->pool[(next->linear + s->shift) % (unsigned)block.count]
                                    : s->idle[--s->idle_count];
            unsigned colour = (unsigned)(next->fiber - s->pool);
            if (next->fiber != s->running) fiber_restart(next->fiber, thread_entry, colour);
        }
        next->state = THREAD_READY;
        to = next->fiber;
    }
    struct fiber *from = s->running;
    if (to == from) return; // an ended thread's stack serves the next one
    s->running = to;
    fiber_switch(from, to);
}

void thread_wait() {
    schedule();
}

static void thread_entry() {
    fiber_arrived(scheduler->running);
    for (;;) {
        order_acquire(&scheduler->start_tag);
        (*scheduler->body)();
        order_release(&scheduler->end_tag);
        struct cuda_thread *thread = block.current;
        thread->state = THREAD_ENDED;
        block.alive--;
        block.warp_ended[thread->warp] |= 1U << thread->lane;
        warp_thread_ended(thread);
        barrier_try_release();
        // Under the thread sanitizer none was taken from there.
        if (!WITH_TSAN) scheduler->idle[scheduler->idle_count++] = thread->fiber;
        schedule(); // comes back only when a new thread starts on this very stack
    }
}

// ---- blocks

// Volatile: no library's memset, which the address sanitizer would check. By words, since all that
// the kernels declare is filled for each block.
static void fill_nan(char *start, size_t bytes) {
    using word = __attribute__((may_alias)) uint64_t;
    size_t i = 0;
    for (; i < bytes && (uintptr_t)(start + i) % sizeof(word) != 0; i++)
        ((volatile char *)start)[i] = (char)0xFF;
    for (; i + sizeof(word) <= bytes; i += sizeof(word))
        *(volatile word *)(start + i) = ~(word)0;
    for (; i < bytes; i++)
        ((volatile char *)start)[i] = (char)0xFF;
}

static void block_reset(dim3 shape) {
    block.count = (int)(shape.x * shape.y * shape.z);
    block.alive = block.count;
    block.at_barrier = 0;
    block.barriers = 0;
    for (unsigned i = 0; i < (unsigned)block.count; i++) {
        struct cuda_thread *thread = &block.threads[i];
        *thread = {};
        thread->linear = i;
        thread->lane = i % 32;
        thread->warp = i / 32;
        thread->index = make_uint3(i % shape.x, i / shape.x % shape.y, i / (shape.x * shape.y));
    }
    for (int w = 0; w * 32 < block.count; w++) {
        int lanes = block.count - w * 32;
        block.warp_waiting[w] = 0;
        block.warp_ended[w] = lanes >= 32 ? 0 : ~0U << lanes;
    }
}

// Every block starts with new shared memory, full of NaNs.
static void shared_reset(size_t dynamic_bytes) {
    char *dynamic = (char *)dynamic_shared;
    for (const auto &section : shared_sections()) {
        size_t bytes = (size_t)(section.second - section.first);
        fill_nan(section.first, bytes);
        order_forget(section.first, bytes);
    }
    fill_nan(dynamic, dynamic_bytes + SHARED_CANARY);
    order_forget(dynamic, dynamic_bytes);
}

static void check_canary(size_t dynamic_bytes) {
    for (size_t i = 0; i < SHARED_CANARY; i++) {
        if (((volatile unsigned char *)dynamic_shared)[dynamic_bytes + i] != 0xFF)
            die("write behind the %zu bytes of dynamic shared memory, at +%zu", dynamic_bytes, i);
    }
}

static void run_block(const struct launch &launch, uint64_t number) {
    struct scheduler *s = scheduler;
    const dim3 grid = launch.grid;
    blockIdx = make_uint3((unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                          (unsigned)(number / ((uint64_t)grid.x * grid.y)));
    block_reset(launch.block);
    s->idle_count = 0;
    for (int i = block.count - 1; i >= 0; i--)
        s->idle[s->idle_count++] = &s->pool[i];
    s->head = s->tail = 0;
    s->newest_first = (random_next(&s->random) >> 40 & 1) != 0;
    s->shift = (unsigned)(number * 7 % (uint64_t)block.count);
    threads_ready(0, block.count, THREAD_NEW, ~0U);
    shared_reset(launch.shared_bytes);
    order_release(&s->start_tag);
    schedule();
    block.current = nullptr;
    check_canary(launch.shared_bytes);
}

void run_grid(const struct launch &launch) {
    if (scheduler == nullptr) scheduler = new struct scheduler;
    struct scheduler *s = scheduler;
    for (unsigned i = 0; i < launch.block.x * launch.block.y * launch.block.z; i++) {
        if (!fiber_open(&s->pool[i])) die("no memory for the threads' stacks");
    }
    fiber_host(&s->host);
    s->running = &s->host;
    s->body = &launch.body;
    gridDim = launch.grid;
    blockDim = launch.block;
    running_kernel = launch.function;
    running_since = seconds_now();
    in_kernel = true;
    fence_open(dynamic_shared, sizeof dynamic_shared);
    // The address sanitizer reports an overrun where it happens, the canary after the block.
    fence_off(dynamic_shared + launch.shared_bytes, sizeof dynamic_shared - launch.shared_bytes);

    uint64_t count = (uint64_t)launch.grid.x * launch.grid.y * launch.grid.z;
    uint64_t first = s->order == ORDER_RANDOM ? random_next(&s->random) % count : 0;
    for (uint64_t i = 0; i < count; i++)
        run_block(launch, s->order == ORDER_REVERSE ? count - 1 - i : (i + first) % count);

    order_acquire(&s->end_tag);
    in_kernel = false;
    running_since = 0.0;
    running_kernel = nullptr;
}

} // namespace cuda_on_cpu
