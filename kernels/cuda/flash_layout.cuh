/* flash_layout.cuh - what the attention kernels are given of a shape, and where things lie.
 * For the .cu files of kernels/cuda alone.
 *
 * Scores are used in base 2: e^(scale s) = 2^(scale_log2 s), since exp2f() is what the chip has.
 */
#ifndef RUBATO_KERNELS_CUDA_FLASH_LAYOUT_CUH
#define RUBATO_KERNELS_CUDA_FLASH_LAYOUT_CUH

#include "kernels/attention.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/philox.cuh"

#include <math.h>

struct flash_layout {
    int64_t B, T, heads, kv_heads, D;
    int64_t stride_qkv, stride_y; // from a position to the next
    float scale, scale_log2;
    struct dropout dropout; // none: threshold 0, scale 1
    bool packs;             // rows of heads are whole packs of 4
};

static const float flash_log2_e = 1.44269504F;

// arrays: all that have rows of heads.
template <class... A>
static inline struct flash_layout flash_layout_of(const struct attention_shape *shape,
                                                  A... arrays) {
    struct flash_layout layout = {};
    layout.B = shape->B;
    layout.T = shape->T;
    layout.heads = shape->heads;
    layout.kv_heads = shape->kv_heads;
    layout.D = shape->head_size;
    layout.stride_qkv = (shape->heads + 2 * shape->kv_heads) * shape->head_size;
    layout.stride_y = shape->heads * shape->head_size;
    layout.scale = 1.0F / sqrtf((float)shape->head_size);
    layout.scale_log2 = layout.scale * flash_log2_e;
    layout.dropout.scale = 1.0F;
    if (shape->dropout != nullptr) layout.dropout = *shape->dropout;
    layout.packs = packable(shape->head_size, arrays...);
    return layout;
}

// Whether the current device lets a block have so much dynamic shared memory. It is 227 KiB on H100
// and B200, 163 on A100, and 99 on many others.
static inline bool shared_memory_fits(int bytes) {
    int device = 0, most = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
               cudaSuccess &&
           bytes <= most;
}

// Where position 0 of sequence b has head h's query, key and value in qkv, and h's part of y.
static __device__ __forceinline__ int64_t query_at(const flash_layout &layout, int64_t b,
                                                   int64_t h) {
    return b * layout.T * layout.stride_qkv + h * layout.D;
}
static __device__ __forceinline__ int64_t key_at(const flash_layout &layout, int64_t b,
                                                 int64_t kv) {
    return query_at(layout, b, layout.heads + kv);
}
static __device__ __forceinline__ int64_t value_at(const flash_layout &layout, int64_t b,
                                                   int64_t kv) {
    return query_at(layout, b, layout.heads + layout.kv_heads + kv);
}
static __device__ __forceinline__ int64_t y_at(const flash_layout &layout, int64_t b, int64_t h) {
    return b * layout.T * layout.stride_y + h * layout.D;
}

// The first four of `count` values, which may be fewer; zero beyond.
static __device__ __forceinline__ float4 load_four(const float *from, int64_t count, bool packs) {
    if (packs && count > 0) return *(const float4 *)from;
    return make_float4(count > 0 ? from[0] : 0.0F, count > 1 ? from[1] : 0.0F,
                       count > 2 ? from[2] : 0.0F, count > 3 ? from[3] : 0.0F);
}

// The random words of keys 4 * quad .. 4 * quad + 3 (kernels/dropout.h); head is b * heads + h.
static __device__ __forceinline__ uint4 dropout_words(const flash_layout &layout, int64_t head,
                                                      int64_t query, int64_t quad) {
    return philox(layout.dropout.key[0], layout.dropout.key[1],
                  make_uint4((unsigned)quad, (unsigned)query, (unsigned)head,
                             (unsigned)((uint64_t)head >> 32)));
}

// The word `number` of these.
static __device__ __forceinline__ uint32_t dropout_word(const uint4 &words, int number) {
    const uint32_t low = number == 0 ? words.x : words.y, high = number == 2 ? words.z : words.w;
    return number < 2 ? low : high;
}

// What the probability of the key with this word is multiplied by.
static __device__ __forceinline__ float dropout_factor_of(const flash_layout &layout,
                                                          const uint4 &words, int number) {
    return dropout_word(words, number) < layout.dropout.threshold ? 0.0F : layout.dropout.scale;
}

// Which of the four keys dropout keeps: a bit each.
static __device__ __forceinline__ uint32_t kept_words(const flash_layout &layout,
                                                      const uint4 &words) {
    const uint32_t threshold = layout.dropout.threshold;
    return (uint32_t)(words.x >= threshold) | (uint32_t)(words.y >= threshold) << 1 |
           (uint32_t)(words.z >= threshold) << 2 | (uint32_t)(words.w >= threshold) << 3;
}

#endif
