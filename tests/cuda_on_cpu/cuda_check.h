/* cuda_check.h - CHECK_CUDA: ends a test whose call of the CUDA runtime, or of a launcher of ours,
 * fails, with its error. Include <cuda_runtime_api.h> too.
 */
#ifndef RUBATO_TESTS_CUDA_CHECK_H
#define RUBATO_TESTS_CUDA_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK_CUDA(call)                                                                           \
    do {                                                                                           \
        cudaError_t error_ = (cudaError_t)(call);                                                  \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorName(error_));                                                     \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

#endif
