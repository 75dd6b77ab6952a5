/* device_sync.cuh - __syncthreads() and the collectives of a warp, for kernels on the CPU.
 *
 * Each is a meeting point in simt_sync.cpp: the thread waits there until all who must come have
 * come. Reports name file and line of the call, which the default arguments pick up. A shuffle or
 * a vote orders no memory, as CUDA documents; __syncwarp() and __syncthreads() do.
 */
#ifndef RUBATO_TESTS_DEVICE_SYNC_CUH
#define RUBATO_TESTS_DEVICE_SYNC_CUH

namespace cuda_on_cpu {

enum barrier_kind { BARRIER_PLAIN, BARRIER_COUNT, BARRIER_AND, BARRIER_OR };

enum warp_kind {
    SHUFFLE_INDEX,
    SHUFFLE_UP,
    SHUFFLE_DOWN,
    SHUFFLE_XOR,
    VOTE_BALLOT,
    VOTE_ALL,
    VOTE_ANY,
    MATCH_ANY,
    REDUCE_ADD,
    REDUCE_MIN_UNSIGNED,
    REDUCE_MAX_UNSIGNED,
    REDUCE_MIN_SIGNED,
    REDUCE_MAX_SIGNED,
    REDUCE_AND,
    REDUCE_OR,
    REDUCE_XOR,
    SYNC_WARP,
    MMA_LOAD, // see wmma_on_cpu.cuh
    MMA_STORE,
    MMA_PRODUCT,
};

/* Where a call stands in the source. */
struct location {
    const char *file;
    int line;
};

/* What one lane brings to a collective. */
struct warp_call {
    enum warp_kind kind;
    unsigned mask;
    uint64_t value;
    int argument; /* of a shuffle: lane, distance or mask */
    int width;    /* of a shuffle */
};

int barrier(enum barrier_kind kind, int predicate, struct location at);
uint64_t warp_collective(const struct warp_call &call, struct location at);

template <class T>
T shuffle(enum warp_kind kind, unsigned mask, T value, int argument, int width,
          struct location at) {
    return from_bits<T>(warp_collective({kind, mask, to_bits(value), argument, width}, at));
}

inline uint64_t vote(enum warp_kind kind, unsigned mask, uint64_t value, struct location at) {
    return warp_collective({kind, mask, value, 0, 32}, at);
}

} // namespace cuda_on_cpu

#define CALLER cuda_on_cpu::location at = {__builtin_FILE(), __builtin_LINE()}

static inline void __syncthreads(CALLER) {
    cuda_on_cpu::barrier(cuda_on_cpu::BARRIER_PLAIN, 0, at);
}
static inline int __syncthreads_count(int predicate, CALLER) {
    return cuda_on_cpu::barrier(cuda_on_cpu::BARRIER_COUNT, predicate, at);
}
static inline int __syncthreads_and(int predicate, CALLER) {
    return cuda_on_cpu::barrier(cuda_on_cpu::BARRIER_AND, predicate, at);
}
static inline int __syncthreads_or(int predicate, CALLER) {
    return cuda_on_cpu::barrier(cuda_on_cpu::BARRIER_OR, predicate, at);
}
static inline void __syncwarp(unsigned mask = ~0U, CALLER) {
    cuda_on_cpu::vote(cuda_on_cpu::SYNC_WARP, mask, 0, at);
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, CALLER) {
    return cuda_on_cpu::shuffle(cuda_on_cpu::SHUFFLE_INDEX, mask, value, lane, width, at);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CALLER) {
    return cuda_on_cpu::shuffle(cuda_on_cpu::SHUFFLE_UP, mask, value, (int)by, width, at);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, CALLER) {
    return cuda_on_cpu::shuffle(cuda_on_cpu::SHUFFLE_DOWN, mask, value, (int)by, width, at);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, CALLER) {
    return cuda_on_cpu::shuffle(cuda_on_cpu::SHUFFLE_XOR, mask, value, by, width, at);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, CALLER) {
    return (unsigned)cuda_on_cpu::vote(cuda_on_cpu::VOTE_BALLOT, mask, predicate != 0, at);
}
static inline int __all_sync(unsigned mask, int predicate, CALLER) {
    return (int)cuda_on_cpu::vote(cuda_on_cpu::VOTE_ALL, mask, predicate != 0, at);
}
static inline int __any_sync(unsigned mask, int predicate, CALLER) {
    return (int)cuda_on_cpu::vote(cuda_on_cpu::VOTE_ANY, mask, predicate != 0, at);
}
template <class T> static inline unsigned __match_any_sync(unsigned mask, T value, CALLER) {
    return (unsigned)cuda_on_cpu::vote(cuda_on_cpu::MATCH_ANY, mask, cuda_on_cpu::to_bits(value),
                                       at);
}

#define REDUCE_SYNC(name, type, kind)                                                              \
    static inline type name(unsigned mask, type value, CALLER) {                                   \
        return (type)cuda_on_cpu::vote(cuda_on_cpu::kind, mask, (unsigned)value, at);              \
    }
REDUCE_SYNC(__reduce_add_sync, unsigned, REDUCE_ADD)
REDUCE_SYNC(__reduce_add_sync, int, REDUCE_ADD)
REDUCE_SYNC(__reduce_min_sync, unsigned, REDUCE_MIN_UNSIGNED)
REDUCE_SYNC(__reduce_min_sync, int, REDUCE_MIN_SIGNED)
REDUCE_SYNC(__reduce_max_sync, unsigned, REDUCE_MAX_UNSIGNED)
REDUCE_SYNC(__reduce_max_sync, int, REDUCE_MAX_SIGNED)
REDUCE_SYNC(__reduce_and_sync, unsigned, REDUCE_AND)
REDUCE_SYNC(__reduce_or_sync, unsigned, REDUCE_OR)
REDUCE_SYNC(__reduce_xor_sync, unsigned, REDUCE_XOR)
#undef REDUCE_SYNC
#undef CALLER

#endif
