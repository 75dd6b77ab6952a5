/* safetensors.h - writes weights as Hugging Face's model.safetensors, with config.json beside it.
 *
 * The format (https://github.com/huggingface/safetensors, "Format"):
 *   offset  size  meaning
 *   0       8     N, length of the header, u64 little-endian, a multiple of 8
 *   8       N     JSON: {"__metadata__":{"format":"pt"},"NAME":{"dtype":"F32","shape":[...],
 *                 "data_offsets":[begin,end]},...}, padded with spaces
 *   8 + N   ...   the tensors' data, row-major, without holes
 * Header and data are in order of name, compared as bytes (strcmp), so that the same weights always
 * give the same file. Written by temporary file, fsync and rename. Set-up and checkpoint time only:
 * it allocates.
 */
#ifndef RUBATO_WORKER_SAFETENSORS_H
#define RUBATO_WORKER_SAFETENSORS_H

#include "proto/plan.h"
#include "worker/dtype.h"
#include "worker/model.h"

/* A tensor of a file that is to be written. */
struct safetensors_item {
    const char *name;
    enum dtype dtype;
    uint32_t dims;
    const uint64_t *shape; /* [dims] */
    uint64_t bytes;        /* of its data */
};

/* The first part of a file with these items, in this order: N and the header -> new memory, free()
 * it. Pure but for that. */
void safetensors_make_header(const struct safetensors_item *items, uint64_t count, uint8_t **header,
                             size_t *bytes);

/* weights [plan.value_count] f32 host -> folder/model.safetensors, f32, with the plan's names and
 * shapes. The folder must exist. IO, logged. */
enum status safetensors_write(const char *folder, const struct plan *plan,
                              const float *weights) WARN_UNUSED;

/* folder/config.json for transformers' GPT2LMHeadModel or LlamaForCausalLM. IO, logged. */
enum status safetensors_write_config(const char *folder,
                                     const struct model_shape *shape) WARN_UNUSED;

#endif
