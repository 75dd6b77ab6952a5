/* hf_config.h - a model's shape from Hugging Face's config.json, for --model PATH.
 *
 * Knows model_type gpt2 (GPT2LMHeadModel) and llama (LlamaForCausalLM). Keys that this code does
 * not know are passed over; those that it does must have a value that our models compute: another
 * activation, scaled rotations, biases where there are none and the like are refused, by key and
 * value. Dropout is passed over: training here has none.
 */
#ifndef RUBATO_WORKER_HF_CONFIG_H
#define RUBATO_WORKER_HF_CONFIG_H

#include "proto/job.h"
#include "worker/model.h"

/* text [bytes], which is changed -> shape, with the config's own vocabulary and positions. `name`
 * is for messages. CORRUPT: no such JSON, or a value is missing or out of range; UNSUPPORTED: a
 * model that we do not compute; MEMORY. Logged; shape unchanged. */
enum status hf_config_parse(const char *name, char *text, size_t bytes,
                            struct model_shape *shape) WARN_UNUSED;

/* path: of a config.json, or of the folder that it is in. As above; IO: cannot be read. Logged. */
enum status hf_config_read(const char *path, struct model_shape *shape) WARN_UNUSED;

/* What --model, --vocab (if 0: data_vocab) and --seq-len say together. INVALID: they do not go
 * together, or --model is none. For a path as hf_config_read; its vocabulary counts, and its
 * positions, of which --seq-len may use fewer. Logged. */
enum status hf_config_of_job(const struct job *job, int64_t data_vocab,
                             struct model_shape *shape) WARN_UNUSED;

#endif
