/* codec_checksum_cuda.cu - base/checksum.h's XXH3 of a payload that stays on the device.
 *
 * Of more than 240 bytes, XXH3 adds 16 stripes of 64 bytes each to 8 numbers, scrambles these, and
 * so on: the sums of a KiB depend on nothing else, so that all are made at once, and what is left
 * is one round of scrambling a KiB. Shorter payloads go to the result, for the host to check.
 * Source: the XXH3 specification in xxHash's doc/xxhash_spec.md (Collet), seed 0.
 */
#include "compression/cuda/codec_cuda.h"
#include "compression/cuda/codec_launch.h"
#include "kernels/cuda/launch.cuh"

enum { STRIPE = 64, STRIPES = 16, ROUND = STRIPE * STRIPES, LANES = 8 };
enum { SUM_THREADS = 128, ROUND_THREADS = 64, ROUNDS_NEAR = 64 };
enum { SECRET_BYTES = 192, SCRAMBLE_AT = 128, LAST_AT = 121, MERGE_AT = 11 };

static constexpr uint64_t PRIME32_1 = 0x9e3779b1, PRIME32_2 = 0x85ebca77, PRIME32_3 = 0xc2b2ae3d;
static constexpr uint64_t PRIME64_1 = 0x9e3779b185ebca87, PRIME64_2 = 0xc2b2ae3d27d4eb4f,
                          PRIME64_3 = 0x165667b19e3779f9, PRIME64_4 = 0x85ebca77c2b2ae63,
                          PRIME64_5 = 0x27d4eb2f165667c5, PRIME_AVALANCHE = 0x165667919e3779f9;

/* The default secret, as little-endian words. */
static __device__ const uint64_t secret_words[SECRET_BYTES / 8] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};

static __device__ const uint64_t first_sums[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                                      PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

static __device__ __forceinline__ uint64_t secret_at(int at) {
    const int shift = at % 8 * 8;
    const uint64_t low = secret_words[at / 8] >> shift;
    return shift == 0 ? low : low | secret_words[at / 8 + 1] << (64 - shift);
}

static __device__ __forceinline__ uint64_t word_at(const uint8_t *bytes) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= (uint64_t)bytes[i] << (8 * i);
    return word;
}

/* What a stripe adds to a lane: a product of its own word, and its neighbour's word. */
static __device__ __forceinline__ uint64_t stripe_part(uint64_t own, uint64_t neighbour, int at) {
    const uint64_t keyed = own ^ secret_at(at);
    return neighbour + (keyed & 0xffffffff) * (keyed >> 32);
}

/* Rounds that are scrambled: the last byte is always behind them. */
static __device__ __forceinline__ int64_t rounds_of(uint64_t bytes) {
    return ((int64_t)bytes - 1) / ROUND;
}

/* sums [rounds, LANES] of whole rounds. */
static __global__ void __launch_bounds__(SUM_THREADS)
    checksum_sums_kernel(const uint8_t *wire, const struct codec_cuda_result *result,
                         uint64_t *sums) {
    const int lane = (int)(threadIdx.x % LANES);
    const int64_t rounds = rounds_of(result->bytes), here = SUM_THREADS / LANES;
    for (int64_t round = blockIdx.x * here + threadIdx.x / LANES; round < rounds;
         round += gridDim.x * here) {
        const uint64_t *words = (const uint64_t *)(wire + round * ROUND);
        uint64_t sum = 0;
        for (int stripe = 0; stripe < STRIPES; stripe++) {
            const uint64_t *at = words + stripe * LANES;
            sum += stripe_part(at[lane], at[lane ^ 1], 8 * (stripe + lane));
        }
        sums[round * LANES + lane] = sum;
    }
}

static __device__ __forceinline__ uint64_t scramble(uint64_t sum, int lane) {
    sum ^= sum >> 47;
    return (sum ^ secret_at(SCRAMBLE_AT + 8 * lane)) * PRIME32_1;
}

/* All rounds, one after the other; `near` is what all threads bring at a time. */
static __device__ uint64_t scramble_rounds(const uint64_t *sums, int64_t rounds,
                                           uint64_t (*near)[LANES]) {
    const int lane = (int)(threadIdx.x % LANES);
    uint64_t sum = first_sums[lane];
    for (int64_t first = 0; first < rounds; first += ROUNDS_NEAR) {
        const int count = (int)min((int64_t)ROUNDS_NEAR, rounds - first);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < count * LANES; i += ROUND_THREADS)
            near[i / LANES][i % LANES] = sums[first * LANES + i];
        __syncthreads();
        for (int i = 0; i < count; i++)
            sum = scramble(sum + near[i][lane], lane);
    }
    return sum;
}

/* What is left of the payload, whole stripes and the last 64 bytes, added to a lane. */
static __device__ uint64_t add_rest(const uint8_t *wire, uint64_t bytes, uint64_t sum, int lane) {
    const int64_t from = rounds_of(bytes) * ROUND;
    const int stripes = (int)(((int64_t)bytes - 1 - from) / STRIPE);
    for (int stripe = 0; stripe < stripes; stripe++) {
        const uint8_t *at = wire + from + stripe * STRIPE;
        sum +=
            stripe_part(word_at(at + 8 * lane), word_at(at + 8 * (lane ^ 1)), 8 * (stripe + lane));
    }
    const uint8_t *last = wire + bytes - STRIPE;
    return sum + stripe_part(word_at(last + 8 * lane), word_at(last + 8 * (lane ^ 1)),
                             LAST_AT + 8 * lane);
}

static __device__ uint64_t merge(const uint64_t *lanes, uint64_t bytes) {
    uint64_t hash = bytes * PRIME64_1;
    for (int i = 0; i < LANES; i += 2) {
        const uint64_t first = lanes[i] ^ secret_at(MERGE_AT + 8 * i);
        const uint64_t second = lanes[i + 1] ^ secret_at(MERGE_AT + 8 * i + 8);
        hash += (first * second) ^ __umul64hi(first, second);
    }
    hash = (hash ^ hash >> 37) * PRIME_AVALANCHE;
    return hash ^ hash >> 32;
}

static __global__ void __launch_bounds__(ROUND_THREADS)
    checksum_kernel(const uint8_t *wire, const uint64_t *sums, struct codec_cuda_result *result) {
    __shared__ uint64_t near[ROUNDS_NEAR][LANES];
    __shared__ uint64_t lanes[LANES];
    const uint64_t bytes = result->bytes;
    const bool is_short = bytes <= CODEC_CUDA_SHORT;
    for (uint64_t i = threadIdx.x; is_short && i < bytes; i += ROUND_THREADS)
        result->short_payload[i] = wire[i];
    const uint64_t sum = scramble_rounds(sums, is_short ? 0 : rounds_of(bytes), near);
    if (!is_short && threadIdx.x < LANES)
        lanes[threadIdx.x] = add_rest(wire, bytes, sum, (int)threadIdx.x);
    __syncthreads();
    if (!is_short && threadIdx.x == 0) result->xxh3 = merge(lanes, bytes);
}

int codec_launch_checksum(int64_t most_bytes, const struct codec_arrays *arrays, uint64_t *sums,
                          struct CUstream_st *stream) {
    const int64_t rounds = most_bytes / ROUND;
    int error = cudaSuccess;
    if (rounds > 0)
        error = kernel_launch(checksum_sums_kernel, kernel_blocks(rounds * LANES, SUM_THREADS),
                              dim3(SUM_THREADS), 0, stream, arrays->wire, arrays->result, sums);
    if (error != cudaSuccess) return error;
    return kernel_launch(checksum_kernel, dim3(1), dim3(ROUND_THREADS), 0, stream, arrays->wire,
                         sums, arrays->result);
}
