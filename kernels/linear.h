/* linear.h - the products of one layer with its weight matrix, through oneDNN.
 *
 * y = x W + b, and its gradients. What oneDNN needs is made once: primitives for the shapes, and
 * room for the weights in the layout that its kernels like (linear_load() packs them, once a step),
 * so that a step only multiplies. With COMPUTE_BF16 the operands are rounded to bfloat16 (to
 * nearest even) on the way in and sums are f32; activations and gradients stay f32 in the caller's
 * memory. Weights are stored [in, out] (GPT-2's Conv1D) or, with `out_in`, [out, in] (Llama's, and
 * a tied head). Memory is taken at linear_open; nothing is allocated afterwards. One thread drives
 * an object; oneDNN uses OpenMP below. Results are repeatable for a shape, a type, a thread count
 * and a chip. linear_*_ref are the oracles.
 */
#ifndef RUBATO_KERNELS_LINEAR_H
#define RUBATO_KERNELS_LINEAR_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum compute_type { COMPUTE_F32, COMPUTE_BF16 };

/* Whether bf16 products are faster than f32 here (AMX or AVX-512 BF16). */
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

/* MEMORY or DEVICE, logged. */
enum status linear_open(struct linear **linear, const struct linear_shape *shape) WARN_UNUSED;
void linear_close(struct linear *linear);

/* Packs weights [in, out] or [out, in] f32 for the products of this step. */
void linear_load(struct linear *linear, const float *weights);

/* x [rows, in], bias [out] or NULL -> y [rows, out]. */
void linear_forward(struct linear *linear, const float *x, const float *bias, float *y,
                    int64_t rows);

/* dy [rows, out] -> dx [rows, in]: overwritten, or added to with `add`. */
void linear_backward_input(struct linear *linear, const float *dy, float *dx, bool add,
                           int64_t rows);

/* x [rows, in], dy [rows, out] -> dweights (stored as the weights): overwritten, or added to with
 * `add`; dbias [out] likewise, NULL for none. */
void linear_backward_weights(struct linear *linear, const float *x, const float *dy,
                             float *dweights, float *dbias, bool add, int64_t rows);

#endif
