/* plan_list.h - lists of tensors for the plan's tests. */
#ifndef RUBATO_TESTS_PLAN_LIST_H
#define RUBATO_TESTS_PLAN_LIST_H

#include "proto/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LIST_MAX 2048

/* A model's tensors in the making. */
struct list {
    struct tensor tensors[LIST_MAX];
    uint64_t count;
};

static inline void list_add(struct list *list, const char *name, uint64_t rows, uint64_t cols,
                            bool decay) {
    struct tensor *tensor = &list->tensors[list->count++];
    memset(tensor, 0, sizeof *tensor);
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->dims = cols == 0 ? 1 : 2;
    tensor->shape[0] = rows;
    tensor->shape[1] = cols;
    tensor->decay = decay;
}

/* As a transformer has them: matrices and vectors by turns. */
static inline void list_add_transformer(struct list *list, uint64_t layers, uint64_t channels,
                                        uint64_t vocab) {
    char name[TENSOR_NAME_MAX];
    list_add(list, "wte.weight", vocab, channels, true);
    list_add(list, "wpe.weight", 128, channels, true);
    for (uint64_t layer = 0; layer < layers; layer++) {
        snprintf(name, sizeof name, "h.%" PRIu64 ".ln_1.weight", layer);
        list_add(list, name, channels, 0, false);
        snprintf(name, sizeof name, "h.%" PRIu64 ".attn.c_attn.weight", layer);
        list_add(list, name, channels, 3 * channels, true);
        snprintf(name, sizeof name, "h.%" PRIu64 ".attn.c_attn.bias", layer);
        list_add(list, name, 3 * channels, 0, false);
        snprintf(name, sizeof name, "h.%" PRIu64 ".mlp.c_fc.weight", layer);
        list_add(list, name, channels, 4 * channels, true);
        snprintf(name, sizeof name, "h.%" PRIu64 ".mlp.c_fc.bias", layer);
        list_add(list, name, 4 * channels, 0, false);
    }
    list_add(list, "ln_f.weight", channels, 0, false);
}

static inline uint64_t list_size(const struct tensor *tensor) {
    uint64_t size = 1;
    for (uint32_t i = 0; i < tensor->dims; i++)
        size *= tensor->shape[i];
    return size;
}

/* Are the blocks the same, but for where they are placed? */
static inline bool list_blocks_equal(const struct plan_block *a, const struct plan_block *b) {
    return a->id == b->id && a->offset == b->offset && a->count == b->count && a->rows == b->rows &&
           a->cols == b->cols && a->first_tensor == b->first_tensor &&
           a->tensor_count == b->tensor_count && a->decay == b->decay;
}

#endif
