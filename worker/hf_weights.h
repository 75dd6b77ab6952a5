/* hf_weights.h - a model's weights from Hugging Face's safetensors files, for --init.
 *
 * Tensors are found by the plan's names, with or without their first part ("transformer.",
 * "model."), since checkpoints of base models come without. Each must be there with the plan's
 * shape, and nothing else but what no model of ours learns: masks and rotary tables that older
 * checkpoints keep, and a head that is a copy of the token embeddings where ours is tied to them.
 */
#ifndef RUBATO_WORKER_HF_WEIGHTS_H
#define RUBATO_WORKER_HF_WEIGHTS_H

#include "proto/plan.h"

#include <stdbool.h>

/* path: as safetensors_open takes it -> weights [plan.value_count] f32 host, in the plan's layout.
 * Its tensor 0 is the token embeddings. IO: unreadable; CORRUPT: a broken file, tensors missing
 * (one line lists them) or unexpected (likewise), or another shape than the plan's; UNSUPPORTED: a
 * head that is not tied, or numbers that are no weights. Logged. */
enum status hf_weights_load(const char *path, const struct plan *plan, float *weights) WARN_UNUSED;

/* Is it a mask or a table that older checkpoints keep beside the weights? */
bool hf_weights_is_buffer(const char *name);

#endif
