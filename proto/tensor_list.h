/* tensor_list.h - a model's tensors to control messages and back. */
#ifndef RUBATO_PROTO_TENSOR_LIST_H
#define RUBATO_PROTO_TENSOR_LIST_H

#include "proto/control.pb-c.h"
#include "proto/plan.h"

/* Message parts that point into the tensors; free with tensor_list_free after packing. */
struct tensor_list {
    Rubato__Tensor *entries;
    Rubato__Tensor **pointers;
};

void tensor_list_pack(const struct tensor *tensors, uint64_t count, struct tensor_list *list);
void tensor_list_free(struct tensor_list *list);

/* False: a name is too long or has too many dimensions. tensors [count]. */
bool tensor_list_unpack(Rubato__Tensor *const *entries, size_t count, struct tensor *tensors);

#endif
