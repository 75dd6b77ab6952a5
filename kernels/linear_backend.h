/* linear_backend.h - what is behind linear.h: two ways to multiply, and how one is chosen.
 *
 * linear_open() takes linear_sgemm, or linear_packed where bf16 is wanted and fast. Tests and
 * benchmarks open the one that they mean. Each backend's state begins with a struct linear, and
 * each keeps what linear.h promises; bias gradients are the same code for both, in linear_cpu.c.
 */
#ifndef RUBATO_KERNELS_LINEAR_BACKEND_H
#define RUBATO_KERNELS_LINEAR_BACKEND_H

#include "base/memory.h"
#include "kernels/linear.h"

/* The operand that a call before rounded and a later one uses again: told by address and rows. */
struct linear_held {
    const float *values; /* NULL: none */
    int64_t rows;
};

struct linear_backend {
    const char *name;

    /* A new object, `shape` copied, `backend` set. UNSUPPORTED: not on this chip, in silence. */
    enum status (*open)(struct linear **linear, const struct linear_shape *shape);
    void (*close)(struct linear *linear);

    /* As linear.h's, with rows >= 1. dweights alone: not the bias's gradient. */
    size_t (*bytes)(const struct linear *linear);
    void (*load)(struct linear *linear, const float *weights);
    void (*forward)(struct linear *linear, const float *x, const float *bias, float *y,
                    int64_t rows);
    void (*backward_input)(struct linear *linear, const float *dy, float *dx, bool add,
                           int64_t rows);
    void (*backward_weights)(struct linear *linear, const float *x, const float *dy,
                             float *dweights, bool add, int64_t rows);
};

struct linear {
    const struct linear_backend *backend;
    struct linear_shape shape;
    struct linear_held x;  /* what the last forward pass had, until the weights' gradient */
    struct linear_held dy; /* what the input's gradient had, likewise */
};

extern const struct linear_backend linear_sgemm;  /* f32, or bf16 by rounding; any chip */
extern const struct linear_backend linear_packed; /* bf16; AVX-512 BF16 or AMX */

/* As linear_open, with the backend given; UNSUPPORTED where this chip does not have it. */
enum status linear_open_backend(struct linear **linear, const struct linear_shape *shape,
                                const struct linear_backend *backend) WARN_UNUSED;

/* True, once, where `held` are these values; they are no longer held afterwards. */
bool linear_held_take(struct linear_held *held, const float *values, int64_t rows);

#endif
