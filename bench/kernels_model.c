/* A model's operations, as worker/model_*.c calls them. Bytes are those that an operation must
 * move: each array that it reads or writes, once. FLOPs of attention are those below the diagonal:
 * two products forward and five backward, whatever is computed again. */
#include "bench/kernels_timed.h"

#include <string.h>

static void run_copy(const struct rig *rig) {
    device_copy(rig->device, DEVICE_COMPUTE, rig->wide[1], rig->wide[0],
                (size_t)(rig->N * rig->I) * sizeof(float), DEVICE_WITHIN);
}

static void run_embedding(const struct rig *rig) {
    rig->ops->embedding_forward(rig->device, rig->tokens, rig->embeddings, NULL, rig->narrow[0],
                                rig->B, rig->T, rig->C);
}
static void run_embedding_backward(const struct rig *rig) {
    const struct embedding_gradients gradients = {.dwte = rig->embedding_grad,
                                                  .scratch = rig->scratch};
    rig->ops->embedding_backward_add(rig->device, rig->tokens, rig->narrow[0], &gradients, rig->B,
                                     rig->T, rig->C);
}

static void run_norm(const struct rig *rig) {
    const struct residual residual = {rig->narrow[0], rig->narrow[1], rig->narrow[2]};
    const struct norm_result result = {rig->narrow[3], rig->vectors[2], rig->vectors[3]};
    rig->ops->norm_forward(rig->device, &residual, rig->vectors[0], rig->vectors[1], &result,
                           rig->N, rig->C, 1e-5F);
}
static struct norm_gradients norm_gradients_of(const struct rig *rig) {
    return (struct norm_gradients){rig->narrow[1], rig->embedding_grad,
                                   rig->embedding_grad + rig->C, rig->scratch};
}
static void run_norm_backward(const struct rig *rig) {
    const struct norm_saved saved = {rig->narrow[2], rig->vectors[2], rig->vectors[3],
                                     rig->vectors[0]};
    const struct norm_gradients gradients = norm_gradients_of(rig);
    rig->ops->norm_backward_add(rig->device, &saved, rig->narrow[0], &gradients, rig->N, rig->C);
}
static void run_rms_norm(const struct rig *rig) {
    const struct residual residual = {rig->narrow[0], rig->narrow[1], rig->narrow[2]};
    rig->ops->rms_norm_forward(rig->device, &residual, rig->vectors[0], rig->narrow[3],
                               rig->vectors[3], rig->N, rig->C, 1e-5F);
}
static void run_rms_norm_backward(const struct rig *rig) {
    const struct rms_norm_saved saved = {rig->narrow[2], rig->vectors[3], rig->vectors[0]};
    const struct norm_gradients gradients = norm_gradients_of(rig);
    rig->ops->rms_norm_backward_add(rig->device, &saved, rig->narrow[0], &gradients, rig->N,
                                    rig->C);
}

static struct rope_shape rope_of(const struct rig *rig) {
    return (struct rope_shape){.B = rig->B,
                               .T = rig->T,
                               .heads = rig->heads,
                               .kv_heads = rig->heads,
                               .head_size = rig->C / rig->heads,
                               .theta = 10000.0};
}
static void run_rope(const struct rig *rig) {
    const struct rope_shape shape = rope_of(rig);
    rig->ops->rope_forward(rig->device, &shape, rig->wide[2]);
}
static void run_rope_backward(const struct rig *rig) {
    const struct rope_shape shape = rope_of(rig);
    rig->ops->rope_backward(rig->device, &shape, rig->wide[2]);
}

static void run_gelu(const struct rig *rig) {
    rig->ops->gelu_bias_forward(rig->device, rig->wide[0], rig->wide[3], rig->wide[1], rig->N,
                                rig->I);
}
static void run_gelu_backward(const struct rig *rig) {
    rig->ops->gelu_bias_backward(rig->device, rig->wide[0], rig->wide[3], rig->wide[2],
                                 rig->wide[1], rig->N, rig->I);
}
static void run_swiglu(const struct rig *rig) {
    rig->ops->swiglu_forward(rig->device, rig->wide[0], rig->wide[1], rig->N, rig->I / 2);
}
static void run_swiglu_backward(const struct rig *rig) {
    rig->ops->swiglu_backward(rig->device, rig->wide[0], rig->wide[2], rig->wide[1], rig->N,
                              rig->I / 2);
}
static void run_dropout(const struct rig *rig) {
    const struct dropout dropout = dropout_make(0.1F, 1, 1, 0, DROPOUT_MLP);
    rig->ops->dropout_rows(rig->device, &dropout, rig->narrow[0], rig->narrow[3], rig->N, rig->C);
}
static void run_cross_entropy(const struct rig *rig) {
    rig->ops->cross_entropy(rig->device, rig->logits, rig->tokens, rig->vectors[2], rig->logit_rows,
                            rig->V, 1e-3F);
}

/* narrow[3] is y, narrow[2] has room for the log-sum-exp; backward comes right after forward. */
static void attend(const struct rig *rig, bool bf16) {
    const struct attention_shape shape = kernels_rig_attention(rig, bf16);
    rig->ops->attention_forward(rig->device, &shape, rig->wide[2], rig->narrow[2], rig->narrow[3],
                                rig->scratch);
}
static void attend_backward(const struct rig *rig, bool bf16) {
    const struct attention_shape shape = kernels_rig_attention(rig, bf16);
    const struct attention_saved saved = {rig->wide[2], rig->narrow[3], rig->narrow[2]};
    rig->ops->attention_backward(rig->device, &shape, &saved, rig->narrow[0], rig->wide[1],
                                 rig->scratch);
}
static void run_attention_f32(const struct rig *rig) {
    attend(rig, false);
}
static void run_attention_f32_backward(const struct rig *rig) {
    attend_backward(rig, false);
}
static void run_attention_bf16(const struct rig *rig) {
    attend(rig, true);
}
static void run_attention_bf16_backward(const struct rig *rig) {
    attend_backward(rig, true);
}

static void square(const struct rig *rig, enum compute_type type) {
    rig->ops->linear_forward(rig->squares[type], rig->square[0], NULL, rig->square[1],
                             rig->bench->square);
}
static void multiply(const struct rig *rig, enum compute_type type) {
    rig->ops->linear_forward(rig->products[type], rig->narrow[0], NULL, rig->wide[1], rig->N);
}
static void multiply_backward(const struct rig *rig, enum compute_type type) {
    struct linear *product = rig->products[type];
    rig->ops->linear_backward_input(product, rig->wide[1], rig->narrow[3], false, rig->N);
    rig->ops->linear_backward_weights(product, rig->narrow[0], rig->wide[1], rig->embedding_grad,
                                      NULL, false, rig->N);
}
static void run_square_f32(const struct rig *rig) {
    square(rig, COMPUTE_F32);
}
static void run_square_tf32(const struct rig *rig) {
    square(rig, COMPUTE_TF32);
}
static void run_square_bf16(const struct rig *rig) {
    square(rig, COMPUTE_BF16);
}
static void run_product_f32(const struct rig *rig) {
    multiply(rig, COMPUTE_F32);
}
static void run_product_tf32(const struct rig *rig) {
    multiply(rig, COMPUTE_TF32);
}
static void run_product_bf16(const struct rig *rig) {
    multiply(rig, COMPUTE_BF16);
}
static void run_product_f32_backward(const struct rig *rig) {
    multiply_backward(rig, COMPUTE_F32);
}
static void run_product_tf32_backward(const struct rig *rig) {
    multiply_backward(rig, COMPUTE_TF32);
}
static void run_product_bf16_backward(const struct rig *rig) {
    multiply_backward(rig, COMPUTE_BF16);
}

struct timed kernels_copy(const struct rig *rig) {
    return (struct timed){
        .name = "copy", .work = 2 * (double)(rig->N * rig->I) * sizeof(float), .run = run_copy};
}

static size_t append(struct timed *list, size_t used, const struct timed *rows, size_t count) {
    memcpy(list + used, rows, count * sizeof *rows);
    return used + count;
}
#define APPEND(list, used, rows) append(list, used, rows, sizeof(rows) / sizeof(rows)[0])

static size_t list_ceilings(const struct rig *rig, struct timed *list) {
    const double side = (double)rig->bench->square, flops = 2 * side * side * side;
    const struct timed rows[] = {
        kernels_copy(rig),
        {"largest product, f32", CEILING_F32, flops, run_square_f32, 0},
        {"largest product, bf16", CEILING_BF16, flops, run_square_bf16, 0},
    };
    const struct timed tf32[] = {
        {"largest product, tf32", CEILING_TF32, flops, run_square_tf32, 0},
    };
    size_t used = APPEND(list, 0, rows);
    return kernels_rig_has(rig, COMPUTE_TF32) ? APPEND(list, used, tf32) : used;
}

static size_t list_rows(const struct rig *rig, struct timed *list, size_t used) {
    const double f = sizeof(float), NC = (double)(rig->N * rig->C) * f;
    const double NI = (double)(rig->N * rig->I) * f, LV = (double)(rig->logit_rows * rig->V) * f;
    const struct timed rows[] = {
        {.name = "embedding", .work = 2 * NC, .run = run_embedding},
        {.name = "embedding, backward", .work = 3 * NC, .run = run_embedding_backward},
        {.name = "residual and norm", .work = 4 * NC, .run = run_norm},
        {.name = "norm, backward", .work = 4 * NC, .run = run_norm_backward},
        {.name = "residual and RMS norm", .work = 4 * NC, .run = run_rms_norm},
        {.name = "RMS norm, backward", .work = 4 * NC, .run = run_rms_norm_backward},
        {.name = "RoPE", .work = 4 * NC, .run = run_rope},
        {.name = "RoPE, backward", .work = 4 * NC, .run = run_rope_backward},
        {.name = "bias and GELU", .work = 2 * NI, .run = run_gelu},
        {.name = "bias and GELU, backward", .work = 3 * NI, .run = run_gelu_backward},
        {.name = "SwiGLU", .work = 1.5 * NI, .run = run_swiglu},
        {.name = "SwiGLU, backward", .work = 2.5 * NI, .run = run_swiglu_backward},
        {.name = "dropout", .work = 2 * NC, .run = run_dropout},
        {.name = "cross entropy", .work = 2 * LV, .run = run_cross_entropy},
    };
    return APPEND(list, used, rows);
}

/* The host's attention rounds nothing to bf16. */
static size_t list_attention(const struct rig *rig, struct timed *list, size_t used) {
    const double scores = (double)(rig->N * rig->C) * (double)rig->T;
    const struct timed f32[] = {
        {"attention, f32", CEILING_F32, 2 * scores, run_attention_f32, 0},
        {"attention, f32, backward", CEILING_F32, 5 * scores, run_attention_f32_backward, 0},
    };
    const struct timed bf16[] = {
        {"attention, bf16", CEILING_BF16, 2 * scores, run_attention_bf16, 0},
        {"attention, bf16, backward", CEILING_BF16, 5 * scores, run_attention_bf16_backward, 0},
    };
    used = APPEND(list, used, f32);
    return device_is_host(rig->device) ? used : APPEND(list, used, bf16);
}

static size_t list_products(const struct rig *rig, struct timed *list, size_t used) {
    const double flops = 2 * (double)(rig->N * rig->C) * (double)rig->I, back = 2 * flops;
    const struct timed rows[] = {
        {"product, f32", CEILING_F32, flops, run_product_f32, 0},
        {"product, f32, backward", CEILING_F32, back, run_product_f32_backward, 0},
        {"product, bf16", CEILING_BF16, flops, run_product_bf16, 0},
        {"product, bf16, backward", CEILING_BF16, back, run_product_bf16_backward, 0},
    };
    const struct timed tf32[] = {
        {"product, tf32", CEILING_TF32, flops, run_product_tf32, 0},
        {"product, tf32, backward", CEILING_TF32, back, run_product_tf32_backward, 0},
    };
    used = APPEND(list, used, rows);
    return kernels_rig_has(rig, COMPUTE_TF32) ? APPEND(list, used, tf32) : used;
}

size_t kernels_model_list(const struct rig *rig, struct timed *list) {
    size_t used = list_ceilings(rig, list);
    used = list_rows(rig, list, used);
    used = list_attention(rig, list, used);
    return list_products(rig, list, used);
}
