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
#include "worker/model.h"

/* weights [plan.value_count] f32 host -> folder/model.safetensors, f32, with the plan's names and
 * shapes. The folder must exist. IO, logged. */
enum status safetensors_write(const char *folder, const struct plan *plan,
                              const float *weights) WARN_UNUSED;

/* folder/config.json for transformers' GPT2LMHeadModel. IO, logged. */
enum status safetensors_write_config(const char *folder,
                                     const struct model_shape *shape) WARN_UNUSED;

#endif
