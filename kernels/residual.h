/* residual.h - what a branch adds to the residual stream, for the norms that follow at once.
 *
 * A norm that makes its own input saves reading the sum from memory again; the bits are those of
 * residual_forward() (kernels/activation.h) and the norm one after the other. All arrays are f32 on
 * the host and the caller's.
 */
#ifndef RUBATO_KERNELS_RESIDUAL_H
#define RUBATO_KERNELS_RESIDUAL_H

/* sum [R, C] = x [R, C] + branch [R, C]; sum may be x. */
struct residual {
    const float *x, *branch;
    float *sum;
};

#endif
