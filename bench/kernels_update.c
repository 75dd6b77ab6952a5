/* What is done with weights and gradients: optimizers and the rest of local steps, and the norm,
 * block by block as a worker calls them; and what it calls for several blocks at once. wide[0] are
 * the weights. */
#include "bench/kernels_timed.h"
#include "kernels/optimizer_device.h"

#include <string.h>

static const struct optimizer adamw = {
    .kind = OPTIMIZER_ADAMW, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F};
static const struct optimizer sgd = {.kind = OPTIMIZER_SGD, .momentum = 0.9F};

static struct optimizer_piece piece_of(const struct rig *rig) {
    return (struct optimizer_piece){.rows = rig->block_rows, .cols = rig->I};
}

size_t kernels_update_state_bytes(const struct rig *rig) {
    const struct optimizer_piece piece = piece_of(rig);
    return optimizer_state_bytes(&adamw, &piece);
}

static void step(const struct rig *rig, const struct optimizer *optimizer) {
    const struct optimizer_update update = {.lr = 1e-6F, .grad_scale = 1.0F, .step = 2};
    const struct optimizer_piece piece = piece_of(rig);
    const size_t state_bytes = kernels_update_state_bytes(rig);
    for (int64_t b = 0; b < rig->blocks; b++) {
        int64_t at = b * kernels_rig_block(rig);
        optimizer_device_step(rig->device, optimizer, &update, &piece, rig->wide[0] + at,
                              rig->states + (size_t)b * state_bytes, rig->wide[2] + at, NULL);
    }
}
static void run_adamw(const struct rig *rig) {
    step(rig, &adamw);
}
static void run_sgd(const struct rig *rig) {
    step(rig, &sgd);
}

static void run_norm(const struct rig *rig) {
    double *scratch = rig->sums + rig->blocks;
    int64_t count = kernels_rig_block(rig);
    for (int64_t b = 0; b < rig->blocks; b++)
        rig->ops->sum_of_squares(rig->device, rig->wide[2] + b * count, scratch, rig->sums + b,
                                 count);
}

static void run_delta(const struct rig *rig) {
    int64_t count = kernels_rig_block(rig);
    for (int64_t b = 0; b < rig->blocks; b++)
        rig->ops->anchor_delta(rig->device, rig->wide[2] + b * count, rig->wide[0] + b * count,
                               1.0F, rig->wide[1] + b * count, count);
}
static void run_mix(const struct rig *rig) {
    int64_t count = kernels_rig_block(rig);
    for (int64_t b = 0; b < rig->blocks; b++)
        rig->ops->anchor_mix(rig->device, rig->wide[2] + b * count, 0.5F, rig->wide[0] + b * count,
                             count);
}

static void run_add(const struct rig *rig) {
    rig->ops->add(rig->device, rig->wide[2], rig->wide[1], rig->N * rig->I);
}
static void run_widen(const struct rig *rig) {
    rig->ops->widen(rig->device, DEVICE_COMPUTE, (const uint16_t *)(const void *)rig->wide[2],
                    rig->wide[1], rig->N * rig->I);
}

size_t kernels_update_list(const struct rig *rig, struct timed *list) {
    const double f = sizeof(float), all = (double)(rig->N * rig->I);
    const double in_blocks = (double)(rig->blocks * kernels_rig_block(rig));
    const struct timed rows[] = {
        {.name = "AdamW", .work = 7 * in_blocks * f, .run = run_adamw},
        {.name = "SGD, momentum", .work = 5 * in_blocks * f, .run = run_sgd},
        {.name = "sum of squares", .work = in_blocks * f, .run = run_norm},
        {.name = "local steps' delta", .work = 3 * in_blocks * f, .run = run_delta},
        {.name = "mixing weights", .work = 3 * in_blocks * f, .run = run_mix},
        {.name = "adding gradients", .work = 3 * all * f, .run = run_add},
        {.name = "bf16 weights to f32", .work = all * (f + 2), .run = run_widen},
    };
    size_t count = sizeof rows / sizeof rows[0];
    if (rig->ops->widen == NULL) count--;
    memcpy(list, rows, count * sizeof *rows);
    return count;
}
