/* simt_sync.cpp - where threads wait for each other: __syncthreads() and a warp's collectives.
 *
 * Strict on purpose: CUDA lets some of what is refused here pass on some chips. A barrier must be
 * reached by all threads of the block, at one place in the source; the lanes that a mask names must
 * all call the same collective with the same mask.
 *
 * For the thread sanitizer a barrier is a release and an acquire on one of two tags, which take
 * turns so that a thread cannot acquire what was released at the barrier behind; __syncwarp() has
 * such a pair of tags for each lane, since lanes of other masks must stay unordered.
 */
#include "sanitizer_hooks.cuh"
#include "simt.cuh"

#include <algorithm>
#include <string.h>

namespace cuda_on_cpu {

static char barrier_tags[2], lane_tags[THREADS_MAX][2];

// ---- __syncthreads

static void check_barrier(struct cuda_thread *thread, struct cuda_thread *first) {
    if (thread->at.line == first->at.line && thread->barrier == first->barrier &&
        strcmp(thread->at.file, first->at.file) == 0)
        return;
    block.current = thread;
    die("divergent barrier: thread %u waits at %s:%d, thread %u at %s:%d", first->linear,
        first->at.file, first->at.line, thread->linear, thread->at.file, thread->at.line);
}

void barrier_try_release() {
    if (block.at_barrier == 0 || block.at_barrier != block.alive) return;
    struct cuda_thread *first = nullptr;
    int count = 0;
    for (int i = 0; i < block.count; i++) {
        struct cuda_thread *thread = &block.threads[i];
        if (thread->state != THREAD_AT_BARRIER) continue;
        if (first == nullptr) first = thread;
        check_barrier(thread, first);
        count += thread->predicate != 0;
    }
    if (block.alive != block.count) {
        block.current = first;
        die("divergent barrier: %d of %d threads returned before the one at %s:%d",
            block.count - block.alive, block.count, first->at.file, first->at.line);
    }
    int result = count;
    if (first->barrier == BARRIER_AND) result = count == block.count;
    if (first->barrier == BARRIER_OR) result = count > 0;
    for (int i = 0; i < block.count; i++)
        block.threads[i].result = (uint64_t)result;
    block.at_barrier = 0;
    block.barriers++;
    threads_ready(0, block.count, THREAD_AT_BARRIER, ~0U);
}

int barrier(enum barrier_kind kind, int predicate, struct location at) {
    if (!in_kernel) die("__syncthreads outside a kernel, %s:%d", at.file, at.line);
    struct cuda_thread *self = block.current;
    self->barrier = kind;
    self->predicate = predicate;
    self->at = at;
    self->state = THREAD_AT_BARRIER;
    block.at_barrier++;
    char *tag = &barrier_tags[block.barriers % 2];
    order_release(tag);
    barrier_try_release();
    thread_wait();
    order_acquire(tag);
    return (int)self->result;
}

// ---- the collectives of a warp

const char *warp_kind_name(enum warp_kind kind) {
    static const char *const names[] = {
        "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",  "__shfl_xor_sync",
        "__ballot_sync",     "__all_sync",        "__any_sync",        "__match_any_sync",
        "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync",
        "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync",
        "__syncwarp",        "load_matrix_sync",  "store_matrix_sync", "mma_sync",
    };
    return names[kind];
}

static struct cuda_thread *lane_of(unsigned warp, int lane) {
    return &block.threads[warp * 32 + (unsigned)lane];
}

static uint32_t reduce(enum warp_kind kind, uint32_t a, uint32_t b) {
    switch (kind) {
    case REDUCE_ADD:
        return a + b;
    case REDUCE_MIN_UNSIGNED:
        return std::min(a, b);
    case REDUCE_MAX_UNSIGNED:
        return std::max(a, b);
    case REDUCE_MIN_SIGNED:
        return (uint32_t)std::min((int32_t)a, (int32_t)b);
    case REDUCE_MAX_SIGNED:
        return (uint32_t)std::max((int32_t)a, (int32_t)b);
    case REDUCE_AND:
        return a & b;
    case REDUCE_OR:
        return a | b;
    case REDUCE_XOR:
        return a ^ b;
    default:
        return 0;
    }
}

// Which lane a shuffle reads; its own where CUDA says so.
static int shuffle_source(const struct cuda_thread *thread) {
    const struct warp_call *call = &thread->call;
    int lane = (int)thread->lane, begin = lane & ~(call->width - 1), end = begin + call->width;
    int source = lane;
    if (call->kind == SHUFFLE_INDEX) source = begin | (call->argument & (call->width - 1));
    if (call->kind == SHUFFLE_UP) source = lane - call->argument;
    if (call->kind == SHUFFLE_DOWN) source = lane + call->argument;
    if (call->kind == SHUFFLE_XOR) source = lane ^ call->argument;
    if (call->kind == SHUFFLE_UP && source < begin) return lane;
    return source >= end ? lane : source;
}

static uint64_t shuffled(struct cuda_thread *thread, unsigned here) {
    int source = shuffle_source(thread);
    if ((here >> source & 1) == 0) {
        block.current = thread;
        die("%s(0x%08x) at %s:%d reads lane %d, which does not take part",
            warp_kind_name(thread->call.kind), thread->call.mask, thread->at.file, thread->at.line,
            source);
    }
    return lane_of(thread->warp, source)->call.value;
}

static void check_collective(struct cuda_thread *thread, const struct cuda_thread *first) {
    if (thread->call.kind == first->call.kind && thread->call.mask == first->call.mask) return;
    block.current = thread;
    die("lanes of a warp meet at different collectives: lane %u %s(0x%08x) %s:%d, lane %u "
        "%s(0x%08x) %s:%d",
        first->lane, warp_kind_name(first->call.kind), first->call.mask, first->at.file,
        first->at.line, thread->lane, warp_kind_name(thread->call.kind), thread->call.mask,
        thread->at.file, thread->at.line);
}

// The result of each lane of `here`, which have all called the collective.
static void collective_compute(unsigned warp, unsigned here) {
    struct cuda_thread *first = lane_of(warp, __builtin_ctz(here));
    enum warp_kind kind = first->call.kind;
    unsigned ballot = 0;
    uint32_t reduced = (uint32_t)first->call.value;
    if (kind >= MMA_LOAD && here != first->call.mask) {
        block.current = first;
        die("%s at %s:%d: not all lanes take part", warp_kind_name(kind), first->at.file,
            first->at.line);
    }
    for (unsigned rest = here; rest != 0; rest &= rest - 1) {
        struct cuda_thread *thread = lane_of(warp, __builtin_ctz(rest));
        check_collective(thread, first);
        ballot |= (unsigned)(thread->call.value & 1) << thread->lane;
        if (thread != first) reduced = reduce(kind, reduced, (uint32_t)thread->call.value);
    }
    for (unsigned rest = here; rest != 0; rest &= rest - 1) {
        struct cuda_thread *thread = lane_of(warp, __builtin_ctz(rest));
        uint64_t result = reduced;
        if (kind <= SHUFFLE_XOR) result = shuffled(thread, here);
        if (kind == VOTE_BALLOT) result = ballot;
        if (kind == VOTE_ALL) result = ballot == here;
        if (kind == VOTE_ANY) result = ballot != 0;
        if (kind == MATCH_ANY) {
            result = 0;
            for (unsigned others = here; others != 0; others &= others - 1) {
                int other = __builtin_ctz(others);
                if (lane_of(warp, other)->call.value == thread->call.value) result |= 1U << other;
            }
        }
        thread->result = result;
    }
}

// For the order that __syncwarp() makes: who met, and with which of their two tags.
static void note_peers(unsigned warp, unsigned here) {
    unsigned odd = 0;
    for (unsigned rest = here; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        odd |= (lane_of(warp, lane)->syncs & 1) << lane;
    }
    for (unsigned rest = here; rest != 0; rest &= rest - 1) {
        struct cuda_thread *thread = lane_of(warp, __builtin_ctz(rest));
        thread->peers = here;
        thread->peers_odd = odd;
        thread->syncs++;
    }
}

// Lanes of the mask that have ended count as arrived; a shuffle that reads one is reported.
static void warp_try_release(unsigned warp, unsigned mask) {
    unsigned here = block.warp_waiting[warp] & mask;
    if (here == 0 || ((block.warp_waiting[warp] | block.warp_ended[warp]) & mask) != mask) return;
    collective_compute(warp, here);
    block.warp_waiting[warp] &= ~here;
    if (lane_of(warp, __builtin_ctz(here))->call.kind == SYNC_WARP) note_peers(warp, here);
    int first = (int)warp * 32;
    threads_ready(first, std::min(first + 32, block.count), THREAD_AT_WARP, here);
}

void warp_thread_ended(const struct cuda_thread *thread) {
    unsigned rest = block.warp_waiting[thread->warp];
    while (rest != 0) {
        unsigned mask = lane_of(thread->warp, __builtin_ctz(rest))->call.mask;
        warp_try_release(thread->warp, mask);
        rest &= ~mask;
    }
}

uint64_t warp_collective(const struct warp_call &call, struct location at) {
    const char *name = warp_kind_name(call.kind);
    if (!in_kernel) die("%s outside a kernel, %s:%d", name, at.file, at.line);
    struct cuda_thread *self = block.current;
    if ((call.mask >> self->lane & 1) == 0)
        die("%s(0x%08x) at %s:%d: the calling lane %u is not in its own mask", name, call.mask,
            at.file, at.line, self->lane);
    if (call.width < 1 || call.width > 32 || (call.width & (call.width - 1)) != 0)
        die("%s at %s:%d: width %d is no power of two up to 32", name, at.file, at.line,
            call.width);
    self->call = call;
    self->at = at;
    self->state = THREAD_AT_WARP;
    block.warp_waiting[self->warp] |= 1U << self->lane;
    if (call.kind == SYNC_WARP) order_release(&lane_tags[self->linear][self->syncs % 2]);
    warp_try_release(self->warp, call.mask);
    thread_wait();
    if (call.kind == SYNC_WARP) {
        for (unsigned rest = self->peers; rest != 0; rest &= rest - 1) {
            unsigned lane = (unsigned)__builtin_ctz(rest);
            order_acquire(&lane_tags[self->warp * 32 + lane][self->peers_odd >> lane & 1]);
        }
    }
    return self->result;
}

} // namespace cuda_on_cpu
