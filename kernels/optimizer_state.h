/* optimizer_state.h - every server optimizer behind one call, with its state in f32, bf16 or int8.
 *
 * A piece is a block of the plan: rows x cols values, each with its own state, stepped by one
 * thread. optimizer_step() gives the same bits on every chip and from its plain twin (_ref): each
 * value goes through the same correctly rounded operations in the same order, sums have one fixed
 * order, powers and roots are made of multiplications (kernels/optimizer.h has AdamW and SGD, whose
 * bits MOMENT_F32 keeps). Muon's products are sums of fmaf() in the order of the inner index: the
 * same bits again, fast where the chip fuses. Only which NaN a NaN is may differ.
 *
 * With g = grad * grad_scale, t = step, and w, m, v the weights and the state:
 *   sgd       g += decay w;  m = momentum m + g (g at t = 1);  w -= lr m             as PyTorch
 *   nesterov  as sgd, but w -= lr (g + momentum m)                                   as PyTorch
 *   adagrad   g += decay w;  v += g g;  w -= lr g / (sqrt(v) + eps)                  as PyTorch;
 *             Duchi, Hazan, Singer, JMLR 12 (2011)
 *   adamw     optimizer.h's; Loshchilov, Hutter, arXiv 1711.05101. With freeze_v_after = N, v and
 *             its bias correction stay what they were at t = N, so that what is a linear function
 *             of the gradients (error feedback, low rank) adds up: Tang et al., arXiv 2102.02888
 *   lion      c = beta1 m + (1 - beta1) g;  w = w (1 - lr decay) - lr sign(c);
 *             m = beta2 m + (1 - beta2) g; Chen et al., arXiv 2302.06675
 *   lamb      m, v as adamw's;  r = m_hat / (sqrt(v_hat) + eps) + decay w;
 *             w -= lr (|w| / |r|) r, the ratio 1 where a norm is 0; You et al., arXiv 1904.00962
 *   adafactor Shazeer, Stern, arXiv 1804.04235, with no first moment (beta1 and beta2 are ignored),
 *             no relative step (lr as given) and no factor of the weights' size.
 *             b = 1 - t^-0.8;  R = b R + (1 - b) mean_cols(g g);  C the same over rows;
 *             v = R C / mean(R);  u = g / max(sqrt(v), eps);
 *             w = w (1 - lr decay) - lr u / max(1, rms(u)).
 *             A piece of one row or one column has v itself: v = b v + (1 - b) g g.
 *   muon      hidden pieces: m = momentum m + g;  O = orthogonalised (g + momentum m);
 *             w = w (1 - lr decay) - lr 0.2 sqrt(max(rows, cols)) O.
 *             Jordan et al., "Muon", 2024; the factor, which gives O the size of an AdamW update
 *             so that AdamW's lr and decay can be kept, is Moonlight's: arXiv 2502.16982, eq. 4.
 *             O by five steps of Newton-Schulz in f32 on X = G / (|G| + 1e-7), transposed if it has
 *             more rows than columns:  A = X X';  X = 3.4445 X + (-4.7750 A + 2.0315 A A) X.
 *             Other pieces: adamw, with beta1, beta2 and eps.
 *
 * Moments. Updates are computed in f32 from the stored state, and only what is stored is rounded:
 * up or down at random, so that the mean is right (stochastic rounding; the random bits are a hash
 * of the value's index and the step). To the nearest, a v in bf16 could never fall with beta2 =
 * 0.999: a change by 1/1000 is less than half a step of 1/256. See tests/test_optimizer_moments.c.
 *   bf16  the upper half of the f32
 *   int8  blocks of 256 values, each a float of 8 bits relative to the block's largest magnitude:
 *         m has a sign, 127 magnitudes, 8 to an octave, over 16 octaves, and 0 below;
 *         v has 255 magnitudes, 8 to an octave, over 32 octaves; what is smaller but not 0 is
 *         kept at the smallest, so that no division by sqrt(v) explodes.
 * Adafactor's R, C and v are f32 always.
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_STATE_H
#define RUBATO_KERNELS_OPTIMIZER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum optimizer_kind {
    OPTIMIZER_SGD,
    OPTIMIZER_NESTEROV,
    OPTIMIZER_ADAGRAD,
    OPTIMIZER_ADAMW,
    OPTIMIZER_LION,
    OPTIMIZER_LAMB,
    OPTIMIZER_ADAFACTOR,
    OPTIMIZER_MUON
};

enum moment_type { MOMENT_F32, MOMENT_BF16, MOMENT_INT8 };

/* What holds for a whole run. Fields that a kind's formula does not name are ignored. */
struct optimizer {
    enum optimizer_kind kind;
    enum moment_type moments;
    float beta1, beta2, eps, momentum; /* betas and momentum in [0, 1) */
    int64_t freeze_v_after; /* adamw: steps after which v, with its correction, stays; 0: never */
};

/* What may change from step to step. */
struct optimizer_update {
    float lr, decay;  /* decay 0: none */
    float grad_scale; /* the gradient is multiplied by it first (1/W, clip) */
    int64_t step;     /* from 1 */
};

struct optimizer_piece {
    int64_t rows, cols; /* rows * cols values, row-major; less than 2^32, and may be 0 */
    bool hidden;        /* a whole hidden matrix: Muon orthogonalises it; the rest gets AdamW */
};

/* "sgd" "nesterov" "adagrad" "adamw" "lion" "lamb" "adafactor" "muon"; false for another name, and
 * then *kind is left. Any thread. */
bool optimizer_find(const char *name, enum optimizer_kind *kind);

/* "f32" "bf16" "int8". */
bool moment_find(const char *name, enum moment_type *type);

/* Bytes of a piece's state, a multiple of 64; 0 for sgd and nesterov with momentum 0. */
size_t optimizer_state_bytes(const struct optimizer *optimizer,
                             const struct optimizer_piece *piece);

/* The first moment m [count] in a piece's state, where it is kept as f32. Any thread. */
float *optimizer_first_moment(const struct optimizer *optimizer, void *state);

/* Bytes that one step needs for a while, a multiple of 64; 0 for most: lamb 4 a value, adafactor 8
 * a column, muon 8 a value of a hidden piece and 8 times the square of its shorter side. */
size_t optimizer_scratch_bytes(const struct optimizer *optimizer,
                               const struct optimizer_piece *piece);

/* One step. weights [rows, cols] f32 in place, grad [rows, cols] f32 read only; state
 * [optimizer_state_bytes] aligned to 64, zeroed before step 1; scratch [optimizer_scratch_bytes]
 * aligned to 64, any content. All on the host and the caller's, none overlapping another; state and
 * scratch may be NULL where they have 0 bytes. The caller's thread does the work. */
void optimizer_step(const struct optimizer *optimizer, const struct optimizer_update *update,
                    const struct optimizer_piece *piece, float *weights, void *state,
                    const float *grad, void *scratch);
void optimizer_step_ref(const struct optimizer *optimizer, const struct optimizer_update *update,
                        const struct optimizer_piece *piece, float *weights, void *state,
                        const float *grad, void *scratch);

/* Where a step's gradient comes from and what becomes of the weights, tile by tile, so that both
 * can be made while the tile is in the cache. Tiles follow each other and make up the piece, each
 * of `size` values but for the last. Lamb, adafactor and muon take the piece as one. */
struct optimizer_tiles {
    int64_t size; /* a multiple of 256 */
    void *context;
    /* The gradient [count] of the values from `first` on; stays as it is until done(). */
    const float *(*grad)(void *context, int64_t first, int64_t count);
    /* These weights are those of after the step. */
    void (*done)(void *context, int64_t first, int64_t count);
};

/* optimizer_step(), with the same bits. scratch is not touched before the first grad() is back. */
void optimizer_step_tiles(const struct optimizer *optimizer, const struct optimizer_update *update,
                          const struct optimizer_piece *piece, float *weights, void *state,
                          const struct optimizer_tiles *tiles, void *scratch);

/* Delay compensation (DC-ASGD: Zheng et al., arXiv 1609.08326): moves the gradient of weights that
 * were `base` to where the weights are now, with g g for the second derivative. Before the step
 * that `update` describes, so the state has seen step - 1 of them:
 *   grad[i] += lambda * c[i] * grad_scale * grad[i]^2 * (weights[i] - base[i])
 *   c[i] = 1 / (sqrt(v_hat[i]) + eps) where the optimizer has a second moment v; else 1
 * With base NULL no copy a worker is needed: weights - base is taken to be `staleness` steps in the
 * direction that the state points in (step's formulas, with m in the place of what uses g), which
 * takes Muon the time of a step; sgd and nesterov with momentum 0, adagrad and adafactor keep no
 * direction, so the gradient stays. At step 1 it stays, too. Arguments as optimizer_step()'s. */
void optimizer_delay_compensate(const struct optimizer *optimizer,
                                const struct optimizer_update *update,
                                const struct optimizer_piece *piece, const float *weights,
                                const void *state, const float *base, float lambda,
                                uint32_t staleness, float *grad, void *scratch);
void optimizer_delay_compensate_ref(const struct optimizer *optimizer,
                                    const struct optimizer_update *update,
                                    const struct optimizer_piece *piece, const float *weights,
                                    const void *state, const float *base, float lambda,
                                    uint32_t staleness, float *grad, void *scratch);

#endif
