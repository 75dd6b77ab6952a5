/* safetensors_export.h - a model's folder, written anew in another number type or other file sizes.
 *
 * Reads a folder as safetensors_open takes it and writes
 *   model.safetensors                                  where the weights fit one file, or
 *   model-00001-of-00003.safetensors, ...              each at most `shard_bytes` of data (but at
 *   model.safetensors.index.json                       least one tensor; none is ever split)
 *   config.json                                        the same but for its torch_dtype
 *   tokenizer.json, generation_config.json, ...        as they are, where the folder has them
 * Tensors keep their names and come in order of name. Masks and tables that are no weights
 * (hf_weights.h) are left out. Memory: one piece of a tensor. Each file appears when it is
 * complete; the index, or model.safetensors, comes last.
 */
#ifndef RUBATO_WORKER_SAFETENSORS_EXPORT_H
#define RUBATO_WORKER_SAFETENSORS_EXPORT_H

#include "base/status.h"
#include "worker/dtype.h"

#include <stdint.h>

struct safetensors_export {
    const char *from, *to; /* folders; `to` is made if it is not there */
    enum dtype dtype;      /* F32, BF16 or F16 (ASSERT) */
    uint64_t shard_bytes;  /* >= 1 */
};

struct safetensors_exported {
    uint64_t tensors, values, files, bytes; /* bytes of all tensors' data */
};

/* IO: `from` cannot be read. CORRUPT, UNSUPPORTED: its content; a value is beyond F16's range, or a
 * tensor is of no weights' type. INVALID: `to` has a model already. DENIED: `to` cannot be written.
 * Logged. */
enum status safetensors_export(const struct safetensors_export *wanted,
                               struct safetensors_exported *done) WARN_UNUSED;

#endif
