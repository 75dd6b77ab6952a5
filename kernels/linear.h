/* linear.h - the products of one layer with its weight matrix, through oneDNN.
 *
 * y = x W + b, and its gradients. Weights are stored [in, out] (GPT-2's Conv1D) or, with `out_in`,
 * [out, in] (Llama's, and a tied head).
 * COMPUTE_F32: oneDNN's sgemm, at its peak for weights as they are stored: nothing is copied.
 * COMPUTE_BF16: operands are rounded to bfloat16 (to nearest even) on the way in, sums are f32;
 * activations and gradients stay f32 in the caller's memory. Where the chip has AMX, oneDNN's
 * bfloat16 primitives work on weights that linear_load() packs, once a step, in the layout which
 * they like; elsewhere sgemm works on rounded copies, which is as fast as f32 (AVX-512 BF16 alone
 * took twice as long: it has half the rate there).
 * COMPUTE_TF32: f32 operands, of which the product reads 10 bits of the mantissa, as tensor cores
 * do; sums in f32. CUDA devices alone (kernels/cuda/linear_cuda.h) have it; linear_open refuses it.
 *
 * Memory is taken at linear_open, and once more at the first calls with another number of rows (of
 * the last four numbers one can alternate; others cost some 50 us each to prepare, in oneDNN's
 * memory, not ours). Rounded operands are kept for the backward pass: see there.
 * One thread drives an object; OpenMP below, with the number of threads that is set at linear_open
 * (kernels/threads.h). Results are repeatable for a shape, a type, a thread count and a chip.
 * linear_*_ref are the oracles.
 */
#ifndef RUBATO_KERNELS_LINEAR_H
#define RUBATO_KERNELS_LINEAR_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum compute_type { COMPUTE_F32, COMPUTE_BF16, COMPUTE_TF32 };

/* Whether bf16 products are faster than f32 here: with AMX. Any thread. */
bool linear_bf16_is_fast(void);

struct linear_shape {
    int64_t rows; /* of x and y, at most; a call may have fewer */
    int64_t in, out;
    int64_t stride_x; /* values from a row of x (and dx) to the next, >= in */
    int64_t stride_y; /* likewise y and dy, >= out */
    bool out_in;      /* weights are stored [out, in] */
    enum compute_type type;
    bool training; /* backward will be called */
};

struct linear;

/* About the bytes that an object holds from its first calls on, oneDNN's own among them. Pure. */
uint64_t linear_need(const struct linear_shape *shape);

/* MEMORY, DEVICE, or UNSUPPORTED: COMPUTE_TF32; logged. */
enum status linear_open(struct linear **linear, const struct linear_shape *shape) WARN_UNUSED;
void linear_close(struct linear *linear);

/* Bytes of memory that the object holds now, besides oneDNN's code. */
size_t linear_bytes(const struct linear *linear);

/* Weights [in, out] or [out, in] f32 for the products until the next load. COMPUTE_BF16 packs them
 * here. Other types keep the pointer: the weights are the caller's, must stay there and not change
 * until the last product with them is done. */
void linear_load(struct linear *linear, const float *weights);

/* x [rows, in], bias [out] or NULL -> y [rows, out]. */
void linear_forward(struct linear *linear, const float *x, const float *bias, float *y,
                    int64_t rows);

/* dy [rows, out] -> dx [rows, in]: overwritten, or added to with `add`. */
void linear_backward_input(struct linear *linear, const float *dy, float *dx, bool add,
                           int64_t rows);

/* x [rows, in], dy [rows, out] -> dweights (stored as the weights): overwritten, or added to with
 * `add`; dbias [out] likewise, NULL for none. At the address and with the rows of the last
 * linear_forward, x must hold what it held then (it may have been away in between); likewise dy of
 * a linear_backward_input since: what was rounded there is used again, once. */
void linear_backward_weights(struct linear *linear, const float *x, const float *dy,
                             float *dweights, float *dbias, bool add, int64_t rows);

/* The oracles: plain loops, sums in double, of operands rounded as the type says. */
void linear_forward_ref(const struct linear_shape *shape, const float *weights, const float *x,
                        const float *bias, float *y, int64_t rows);
void linear_backward_input_ref(const struct linear_shape *shape, const float *weights,
                               const float *dy, float *dx, bool add, int64_t rows);
void linear_backward_weights_ref(const struct linear_shape *shape, const float *x, const float *dy,
                                 float *dweights, float *dbias, bool add, int64_t rows);

#endif
