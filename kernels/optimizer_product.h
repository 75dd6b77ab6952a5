/* optimizer_product.h - Muon's orthogonalisation, and the matrix product that it is made of.
 *
 * Every value of a product is a chain of fmaf() in the order of the inner index, which makes the
 * same bits on every chip and from a plain triple loop. Internal to kernels/optimizer*.c and its
 * tests; arrays f32 on the host and the caller's, none overlapping another. One thread.
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_PRODUCT_H
#define RUBATO_KERNELS_OPTIMIZER_PRODUCT_H

#include "kernels/optimizer_state.h"

#include <math.h>

#define MUON_A 3.4445F
#define MUON_B (-4.7750F)
#define MUON_C 2.0315F

enum { MUON_STEPS = 5 };

/* What makes G to X = G / (|G| + 1e-7), from the sum of squares. */
static inline float optimizer_product_unit(double squared) {
    return (float)(1.0 / (sqrt(squared) + 1e-7));
}

/* C = keep C0 + A B, where C0 is `start` [rows, cols] or, if NULL, zeros: each value starts with
 * keep * start, then c = fmaf(a[k], b[k], c) for k from 0. A [rows, inner], B [inner, cols],
 * C [rows, cols], row-major and dense. */
struct optimizer_product {
    int64_t rows, cols, inner;
    const float *start;
    float keep;
    bool symmetric; /* C is square and known to be symmetric: half of it is enough */
};

void optimizer_product(const struct optimizer_product *product, const float *a, const float *b,
                       float *c);
void optimizer_product_ref(const struct optimizer_product *product, const float *a, const float *b,
                           float *c);

/* scratch [optimizer_scratch_bytes of Muon] starts with G [rows, cols]; returns where in scratch
 * G orthogonalised [rows, cols] is: kernels/optimizer_state.h has the formula. */
float *optimizer_product_orthogonal(const struct optimizer_piece *piece, float *scratch);
float *optimizer_product_orthogonal_ref(const struct optimizer_piece *piece, float *scratch);

#endif
