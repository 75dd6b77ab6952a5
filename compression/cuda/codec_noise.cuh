/* codec_noise.cuh - the random bits of a tile's values: scheme_noise() of compression/scheme.h. */
#ifndef RUBATO_COMPRESSION_CUDA_CODEC_NOISE_CUH
#define RUBATO_COMPRESSION_CUDA_CODEC_NOISE_CUH

#include "compression/cuda/codec_tile.cuh"
#include "kernels/cuda/philox.cuh"

/* The 16 bits of each of the lane's values of 128 that begin at `first` of the block. An even lane
 * makes what it and the next one need of the first 64, the odd one of the others. */
static __device__ __forceinline__ void noise(const struct codec_launch &launch,
                                             const struct tile &tile, int64_t first,
                                             int (&bits)[SCALED_EACH]) {
    const bool odd = tile.lane % 2 != 0;
    const uint32_t call = (uint32_t)((first + (odd ? SCALED / 2 : 0)) / 8 + tile.lane / 2);
    const uint4 words = philox(launch.noise_key[0], launch.noise_key[1],
                               make_uint4(call, launch.noise_counter[0], launch.noise_counter[1],
                                          launch.noise_counter[2]));
    const uint32_t got[2] = {__shfl_xor_sync(WARP, odd ? words.x : words.y, 1),
                             __shfl_xor_sync(WARP, odd ? words.z : words.w, 1)};
    const uint32_t own[2] = {odd ? words.y : words.x, odd ? words.w : words.z};
#pragma unroll
    for (int j = 0; j < SCALED_EACH; j++) {
        const int word = j % (SCALED_EACH / 2) / 2;
        const uint32_t number = odd == (j >= SCALED_EACH / 2) ? own[word] : got[word];
        bits[j] = (int)(number >> (j % 2 * 16) & 0xffff);
    }
}

#endif
