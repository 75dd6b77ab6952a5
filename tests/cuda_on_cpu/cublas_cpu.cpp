/* cublas_cpu.cpp - the part of cuBLAS that the project uses: column-major matrix products.
 *
 * C [m, n] = alpha op(A) [m, k] op(B) [k, n] + beta C, operands in f32, bf16 or f16, sums in f32.
 * FAST_TF32 rounds operands in f32 to TF32's 10 bits of mantissa, which cuBLAS may do then.
 * The order of the sums is fixed, and nothing contracts to fused multiply-add, so the bits are the
 * same on every machine; they are not cuBLAS's, so tests compare with a tolerance.
 */
#include "device_memory.cuh"
#include "simt.cuh"
#include "streams.cuh"

#include <cublas_v2.h>
#include <vector>

struct cublasContext {
    int device;
    cudaStream_t stream;
};

namespace cuda_on_cpu {

struct matrix {
    char *data;
    cudaDataType type;
    size_t leading;
    size_t stride; // in elements, from one matrix of a batch to the next
    bool transposed;
};

struct product {
    size_t m, n, k;
    float alpha, beta;
    bool tf32;
    struct matrix a, b, c;
};

static size_t element_bytes(cudaDataType type) {
    return type == CUDA_R_32F ? 4 : 2;
}

static bool type_known(cudaDataType type) {
    return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F;
}

static float get(const struct matrix &matrix, size_t row, size_t column) {
    if (matrix.transposed) std::swap(row, column);
    const char *at = matrix.data + (column * matrix.leading + row) * element_bytes(matrix.type);
    if (matrix.type == CUDA_R_32F) return *(const float *)at;
    if (matrix.type == CUDA_R_16BF) return __bfloat162float(*(const __nv_bfloat16 *)at);
    return __half2float(*(const __half *)at);
}

static void set(const struct matrix &matrix, size_t row, size_t column, float value) {
    char *at = matrix.data + (column * matrix.leading + row) * element_bytes(matrix.type);
    if (matrix.type == CUDA_R_32F)
        *(float *)at = value;
    else if (matrix.type == CUDA_R_16BF)
        *(__nv_bfloat16 *)at = __float2bfloat16_rn(value);
    else
        *(__half *)at = __float2half_rn(value);
}

// To nearest, half way to the larger one, as cvt.rna.tf32 does; NaN and infinity stay.
static float to_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000U) != 0x7f800000U) bits = (bits + 0x1000U) & ~0x1fffU;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float factor_at(const struct product &p, const struct matrix &matrix, size_t row,
                       size_t column) {
    const float value = get(matrix, row, column);
    return p.tf32 && matrix.type == CUDA_R_32F ? to_tf32(value) : value;
}

static void multiply(const struct product &p) {
    std::vector<float> a(p.m * p.k), sums(p.m),
        before(p.m); // a: one column after another, so the loop is fast
    for (size_t l = 0; l < p.k; l++) {
        for (size_t i = 0; i < p.m; i++)
            a[l * p.m + i] = factor_at(p, p.a, i, l);
    }
    for (size_t j = 0; j < p.n; j++) {
        // With beta 0 CUDA does not read C, which may be NaN. Sums start with it where they can, as
        // real kernels' may: who counts on another order is to be noticed.
        for (size_t i = 0; i < p.m; i++)
            before[i] = p.beta != 0.0F ? p.beta * get(p.c, i, j) : 0.0F;
        std::fill(sums.begin(), sums.end(), 0.0F);
        if (p.alpha == 1.0F) sums.swap(before);
        for (size_t l = 0; l < p.k; l++) {
            const float factor = factor_at(p, p.b, l, j), *column = &a[l * p.m];
            for (size_t i = 0; i < p.m; i++)
                sums[i] += column[i] * factor;
        }
        for (size_t i = 0; i < p.m; i++)
            set(p.c, i, j, p.alpha * sums[i] + before[i]);
    }
}

static void step(struct matrix *matrix) {
    matrix->data += matrix->stride * element_bytes(matrix->type);
}

static void check_matrix(const struct matrix &matrix, size_t rows, size_t columns, size_t batch) {
    if (matrix.transposed) std::swap(rows, columns);
    if (rows == 0 || columns == 0 || batch == 0) return;
    size_t last = (batch - 1) * matrix.stride + (columns - 1) * matrix.leading + rows;
    if (memory_check("cublas", matrix.data, last * element_bytes(matrix.type)) != MEMORY_DEVICE)
        die("cublas: a matrix at %p is not in device memory", (void *)matrix.data);
}

static bool product_valid(const struct product &p) {
    size_t a_rows = p.a.transposed ? p.k : p.m, b_rows = p.b.transposed ? p.n : p.k;
    return p.a.leading >= a_rows && p.b.leading >= b_rows && p.c.leading >= p.m &&
           type_known(p.a.type) && type_known(p.b.type) && type_known(p.c.type);
}

static cublasStatus_t enqueue_product(cublasHandle_t handle, struct product p, size_t batch) {
    if (!product_valid(p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (device_current() != handle->device || stream_device(handle->stream) != handle->device)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    check_matrix(p.a, p.m, p.k, batch);
    check_matrix(p.b, p.k, p.n, batch);
    check_matrix(p.c, p.m, p.n, batch);
    cudaError_t error = enqueue_work(handle->stream, true, [p, batch] {
        struct product each = p;
        for (size_t i = 0; i < batch; i++) {
            multiply(each);
            step(&each.a);
            step(&each.b);
            step(&each.c);
        }
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = new cublasContext{device_current(), nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "an error that the stand-in never makes";
    }
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_op,
                                          cublasOperation_t b_op, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int a_leading, long long a_stride, const void *b,
                                          cudaDataType b_type, int b_leading, long long b_stride,
                                          const void *beta, void *c, cudaDataType c_type,
                                          int c_leading, long long c_stride, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
    if (m < 0 || n < 0 || k < 0 || batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32 &&
        compute != CUBLAS_COMPUTE_32F_PEDANTIC)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct product p = {};
    p.m = (size_t)m;
    p.n = (size_t)n;
    p.k = (size_t)k;
    p.alpha = *(const float *)alpha;
    p.beta = *(const float *)beta;
    p.tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    p.a = {(char *)a, a_type, (size_t)a_leading, (size_t)a_stride, a_op != CUBLAS_OP_N};
    p.b = {(char *)b, b_type, (size_t)b_leading, (size_t)b_stride, b_op != CUBLAS_OP_N};
    p.c = {(char *)c, c_type, (size_t)c_leading, (size_t)c_stride, false};
    return enqueue_product(handle, p, (size_t)batch);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int a_leading, const void *b, cudaDataType b_type,
                            int b_leading, const void *beta, void *c, cudaDataType c_type,
                            int c_leading, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(handle, a_op, b_op, m, n, k, alpha, a, a_type, a_leading, 0,
                                      b, b_type, b_leading, 0, beta, c, c_type, c_leading, 0, 1,
                                      compute, algorithm);
}

} // extern "C"
