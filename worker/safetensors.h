/* safetensors.h - writes weights as Hugging Face's model.safetensors, with config.json beside it.
 *
 * The format: u64 header length, JSON header, tensor data without holes; the header is padded with spaces to a
 * multiple of 8 and tensors are in order of name. Written by temporary file, fsync and rename.
 */
#ifndef RUBATO_WORKER_SAFETENSORS_H
#define RUBATO_WORKER_SAFETENSORS_H

#include "proto/plan.h"
#include "worker/model.h"

/* weights [plan.value_count] -> folder/model.safetensors, f32, the plan's names and shapes. IO, logged. */
enum status safetensors_write(const char *folder, const struct plan *plan,
                              const float *weights) WARN_UNUSED;

/* folder/config.json for transformers' GPT2LMHeadModel. IO, logged. */
enum status safetensors_write_config(const char *folder,
                                     const struct model_shape *shape) WARN_UNUSED;

#endif
