/* embedding.h - token embeddings, and learned position embeddings added to them.
 *
 * tokens [B, T] i32 are in 0..V-1, checked by the caller; all else is f32 on the host. The bits
 * do not depend on the thread count. The _ref twins are the oracles. Any thread may call.
 */
#ifndef RUBATO_KERNELS_EMBEDDING_H
#define RUBATO_KERNELS_EMBEDDING_H

#include <stdint.h>

/* y [B, T, C] = wte [V, C][token] + wpe [T.., C][t]; wpe NULL: nothing is added. */
void embedding_forward(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                       int64_t B, int64_t T, int64_t C);
void embedding_forward_ref(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                           int64_t B, int64_t T, int64_t C);

/* dwte [V, C] and dwpe [T.., C] += dy [B, T, C]; the same order of additions for any thread
 * count: that of the positions in dy. dwpe may be NULL. */
void embedding_backward_add(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                            int64_t B, int64_t T, int64_t C);
void embedding_backward_add_ref(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                                int64_t B, int64_t T, int64_t C);

#endif
