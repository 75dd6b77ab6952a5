/* activation_cpu.c - element-wise kernels in pieces of a fixed size, so that threads share them. */
#include "kernels/activation.h"
#include "kernels/dispatch.h"
#include "kernels/exp.h"

enum {
    PIECE = 4096,          /* values a call of a clone */
    COLUMNS = 64,          /* columns a thread sums at a time */
    PARALLEL_MIN = 1 << 15 /* values below which waking threads costs more than it saves */
};

static const float root_2_over_pi = 0.797884561F;
static const float cubic = 0.044715F;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

#define ACTIVATION_INLINE static inline __attribute__((always_inline))

ACTIVATION_INLINE float gelu(float v) {
    float u = root_2_over_pi * (v + cubic * (v * v * v));
    return v / (1.0F + exp_f32(-2.0F * u));
}

ACTIVATION_INLINE float gelu_derivative(float v) {
    /* Beyond +-10 the derivative is 1 or 0 to the last bit; held there, no term overflows. */
    v = v < -10.0F ? -10.0F : v;
    v = v > 10.0F ? 10.0F : v;
    float u = root_2_over_pi * (v + cubic * (v * v * v));
    float slope = 2.0F * root_2_over_pi * (1.0F + 3.0F * cubic * (v * v));
    float e = exp_f32(-2.0F * u);
    float sigmoid = 1.0F / (1.0F + e);
    return sigmoid + v * slope * (sigmoid * (e * sigmoid));
}

/* y may be x, and dx dy: within an iteration the reads come first, so `omp simd` is true. */
KERNEL_CLONES static void gelu_forward_piece(const float *x, float *y, int64_t N) {
#pragma omp simd
    for (int64_t i = 0; i < N; i++)
        y[i] = gelu(x[i]);
}

KERNEL_CLONES static void gelu_bias_forward_row(const float *restrict x, const float *restrict bias,
                                                float *restrict y, int64_t F) {
    for (int64_t i = 0; i < F; i++)
        y[i] = gelu(x[i] + bias[i]);
}

/* dx may be dy. */
KERNEL_CLONES static void gelu_bias_backward_row(const float *restrict x,
                                                 const float *restrict bias, const float *dy,
                                                 float *dx, int64_t F) {
#pragma omp simd
    for (int64_t i = 0; i < F; i++)
        dx[i] = dy[i] * gelu_derivative(x[i] + bias[i]);
}

KERNEL_CLONES static void gelu_backward_piece(const float *x, const float *dy, float *dx,
                                              int64_t N) {
#pragma omp simd
    for (int64_t i = 0; i < N; i++)
        dx[i] = dy[i] * gelu_derivative(x[i]);
}

KERNEL_CLONES static void swiglu_forward_row(const float *restrict x, float *restrict y,
                                             int64_t F) {
    for (int64_t i = 0; i < F; i++)
        y[i] = x[i] / (1.0F + exp_f32(-x[i])) * x[F + i];
}

/* dx may be x: within an iteration the reads come first. */
KERNEL_CLONES static void swiglu_backward_row(const float *x, const float *restrict dy, float *dx,
                                              int64_t F) {
#pragma omp simd
    for (int64_t i = 0; i < F; i++) {
        /* Held where e^-gate would overflow: sigmoid and derivative are nothing there. */
        float gate = x[i] < -88.0F ? -88.0F : x[i];
        float up = x[F + i];
        float e = exp_f32(-gate);
        float sigmoid = 1.0F / (1.0F + e);
        dx[i] = dy[i] * up * (sigmoid + gate * (sigmoid * (e * sigmoid)));
        dx[F + i] = dy[i] * (gate * sigmoid);
    }
}

KERNEL_CLONES static void add_piece(const float *a, const float *b, float *y, int64_t N) {
#pragma omp simd
    for (int64_t i = 0; i < N; i++)
        y[i] = a[i] + b[i];
}

KERNEL_CLONES static void column_sums(const float *restrict dy, float *restrict dbias, int64_t R,
                                      int64_t C, int64_t width) {
    float sums[COLUMNS] = {0};
    for (int64_t r = 0; r < R; r++) {
        for (int64_t c = 0; c < width; c++)
            sums[c] += dy[r * C + c];
    }
    for (int64_t c = 0; c < width; c++)
        dbias[c] += sums[c];
}

void gelu_forward(const float *x, float *y, int64_t N) {
#pragma omp parallel for if (N >= PARALLEL_MIN)
    for (int64_t i = 0; i < N; i += PIECE)
        gelu_forward_piece(x + i, y + i, smaller(PIECE, N - i));
}

void gelu_backward(const float *x, const float *dy, float *dx, int64_t N) {
#pragma omp parallel for if (N >= PARALLEL_MIN)
    for (int64_t i = 0; i < N; i += PIECE)
        gelu_backward_piece(x + i, dy + i, dx + i, smaller(PIECE, N - i));
}

void gelu_bias_forward(const float *x, const float *bias, float *y, int64_t R, int64_t F) {
#pragma omp parallel for if (R * F >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        gelu_bias_forward_row(x + r * F, bias, y + r * F, F);
}

void gelu_bias_backward(const float *x, const float *bias, const float *dy, float *dx, int64_t R,
                        int64_t F) {
#pragma omp parallel for if (R * F >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        gelu_bias_backward_row(x + r * F, bias, dy + r * F, dx + r * F, F);
}

void swiglu_forward(const float *x, float *y, int64_t R, int64_t F) {
#pragma omp parallel for if (R * F >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        swiglu_forward_row(x + 2 * r * F, y + r * F, F);
}

void swiglu_backward(const float *x, const float *dy, float *dx, int64_t R, int64_t F) {
#pragma omp parallel for if (R * F >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        swiglu_backward_row(x + 2 * r * F, dy + r * F, dx + 2 * r * F, F);
}

void bias_add(float *y, const float *bias, int64_t R, int64_t C) {
#pragma omp parallel for if (R * C >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        add_piece(y + r * C, bias, y + r * C, C);
}

void bias_backward_add(const float *dy, float *dbias, int64_t R, int64_t C) {
#pragma omp parallel for if (R * C >= PARALLEL_MIN)
    for (int64_t c = 0; c < C; c += COLUMNS)
        column_sums(dy + c, dbias + c, R, C, smaller(COLUMNS, C - c));
}

void residual_forward(const float *a, const float *b, float *y, int64_t N) {
#pragma omp parallel for if (N >= PARALLEL_MIN)
    for (int64_t i = 0; i < N; i += PIECE)
        add_piece(a + i, b + i, y + i, smaller(PIECE, N - i));
}
