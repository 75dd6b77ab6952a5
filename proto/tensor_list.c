#include "proto/tensor_list.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tensor_list_pack(const struct tensor *tensors, uint64_t count, struct tensor_list *list) {
    list->entries = memory_zeroed((size_t)count + 1, sizeof(Rubato__Tensor));
    list->pointers = memory_zeroed((size_t)count + 1, sizeof(Rubato__Tensor *));
    for (uint64_t i = 0; i < count; i++) {
        rubato__tensor__init(&list->entries[i]);
        list->entries[i].name = (char *)tensors[i].name;
        list->entries[i].n_shape = tensors[i].dims;
        list->entries[i].shape = (uint64_t *)tensors[i].shape;
        list->entries[i].decay = tensors[i].decay;
        list->entries[i].embedding = tensors[i].embedding;
        list->pointers[i] = &list->entries[i];
    }
}

void tensor_list_free(struct tensor_list *list) {
    free(list->entries);
    free(list->pointers);
}

bool tensor_list_unpack(Rubato__Tensor *const *entries, size_t count, struct tensor *tensors) {
    for (size_t i = 0; i < count; i++) {
        const Rubato__Tensor *entry = entries[i];
        if (strlen(entry->name) >= TENSOR_NAME_MAX || entry->n_shape == 0 ||
            entry->n_shape > TENSOR_DIMS_MAX) {
            return false;
        }
        tensors[i] = (struct tensor){
            .dims = (uint32_t)entry->n_shape, .decay = entry->decay, .embedding = entry->embedding};
        (void)snprintf(tensors[i].name, TENSOR_NAME_MAX, "%s", entry->name);
        memcpy(tensors[i].shape, entry->shape, entry->n_shape * sizeof(uint64_t));
    }
    return true;
}
