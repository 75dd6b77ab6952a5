#include "worker/safetensors.h"

#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES       ((uint64_t)64 << 20) /* of one write */
#define CONFIG_BYTES      4096
#define HEADER_BYTES_ONCE 256 /* braces and metadata */
/* The most a tensor takes of the header: its name, each byte escaped, and its shape and offsets. */
#define HEADER_BYTES_EACH (TENSOR_NAME_MAX * 6 + (size_t)TENSOR_DIMS_MAX * 24 + 128)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weights are written as they lie");

/* A tensor's place in the file is its place in the sorted array. */
struct entry {
    const struct tensor *tensor;
    uint64_t offset; /* in the flat vector */
};

static int compare_names(const void *left, const void *right) {
    const struct entry *a = left, *b = right;
    return strcmp(a->tensor->name, b->tensor->name);
}

/* The plan's tensors in order of name -> new memory. */
static struct entry *sort_tensors(const struct plan *plan) {
    struct entry *entries = memory_zeroed((size_t)plan->tensor_count, sizeof(*entries));
    for (uint64_t i = 0; i < plan->tensor_count; i++)
        entries[i] = (struct entry){&plan->tensors[i], plan->offsets[i]};
    qsort(entries, (size_t)plan->tensor_count, sizeof(*entries), compare_names);
    return entries;
}

static uint64_t tensor_bytes(const struct tensor *tensor) {
    uint64_t bytes = sizeof(float);
    for (uint32_t d = 0; d < tensor->dims; d++)
        bytes *= tensor->shape[d];
    return bytes;
}

/* text [capacity] <- the header without its padding. */
static enum status make_header(const struct entry *sorted, uint64_t count, char *text,
                               size_t capacity, size_t *bytes) {
    struct json json;
    json_begin(&json, text, capacity);
    json_open_object(&json, "__metadata__");
    json_text(&json, "format", "pt");
    json_close_object(&json);
    uint64_t begin = 0;
    for (uint64_t i = 0; i < count; i++) {
        const struct tensor *tensor = sorted[i].tensor;
        uint64_t end = begin + tensor_bytes(tensor);
        json_open_object(&json, tensor->name);
        json_text(&json, "dtype", "F32");
        json_open_array(&json, "shape");
        for (uint32_t d = 0; d < tensor->dims; d++)
            json_int(&json, NULL, (int64_t)tensor->shape[d]);
        json_close_array(&json);
        json_open_array(&json, "data_offsets");
        json_int(&json, NULL, (int64_t)begin);
        json_int(&json, NULL, (int64_t)end);
        json_close_array(&json);
        json_close_object(&json);
        begin = end;
    }
    return json_end(&json, bytes);
}

static enum status write_pieces(struct files_writer *writer, const void *data, uint64_t bytes) {
    const uint8_t *next = data;
    while (bytes > 0) {
        uint64_t piece = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        TRY(files_write(writer, next, (size_t)piece));
        next += piece;
        bytes -= piece;
    }
    return STATUS_OK;
}

static enum status write_all(struct files_writer *writer, const struct entry *sorted,
                             uint64_t count, const char *header, uint64_t header_bytes,
                             const float *weights) {
    TRY(files_write(writer, &header_bytes, sizeof(header_bytes)));
    TRY(files_write(writer, header, (size_t)header_bytes));
    for (uint64_t i = 0; i < count; i++) {
        const float *data = weights + sorted[i].offset;
        TRY(write_pieces(writer, data, tensor_bytes(sorted[i].tensor)));
    }
    return files_commit(writer);
}

static enum status model_path(const char *folder, const char *name, char path[4096]) {
    return files_join(path, 4096, folder, name) == STATUS_OK ? STATUS_OK : STATUS_IO;
}

enum status safetensors_write(const char *folder, const struct plan *plan, const float *weights) {
    char path[4096];
    TRY(model_path(folder, "model.safetensors", path));
    struct entry *sorted = sort_tensors(plan);
    size_t capacity = HEADER_BYTES_ONCE + (size_t)plan->tensor_count * HEADER_BYTES_EACH;
    char *header = memory_zeroed(capacity + 8, 1);
    size_t bytes = 0;
    struct files_writer writer;
    enum status status = make_header(sorted, plan->tensor_count, header, capacity, &bytes);
    if (status != STATUS_OK) goto free_memory;
    while (bytes % 8 != 0)
        header[bytes++] = ' ';
    status = files_create(&writer, path);
    if (status != STATUS_OK) goto free_memory;
    status = write_all(&writer, sorted, plan->tensor_count, header, bytes, weights);
    files_abandon(&writer);
free_memory:
    free(header);
    free(sorted);
    return status;
}

static enum status make_config(const struct model_shape *shape, char *text, size_t capacity,
                               size_t *bytes) {
    struct json json;
    json_begin(&json, text, capacity);
    json_text(&json, "model_type", "gpt2");
    json_open_array(&json, "architectures");
    json_text(&json, NULL, "GPT2LMHeadModel");
    json_close_array(&json);
    json_int(&json, "vocab_size", shape->vocab);
    json_int(&json, "n_positions", shape->positions);
    json_int(&json, "n_embd", shape->channels);
    json_int(&json, "n_layer", shape->layers);
    json_int(&json, "n_head", shape->heads);
    json_text(&json, "activation_function", "gelu_new");
    json_real(&json, "layer_norm_epsilon", 1e-5, 6);
    json_bool(&json, "tie_word_embeddings", true);
    json_int(&json, "resid_pdrop", 0);
    json_int(&json, "embd_pdrop", 0);
    json_int(&json, "attn_pdrop", 0);
    json_text(&json, "torch_dtype", "float32");
    if (shape->vocab == 50257) {
        json_int(&json, "bos_token_id", 50256);
        json_int(&json, "eos_token_id", 50256);
    }
    return json_end(&json, bytes);
}

enum status safetensors_write_config(const char *folder, const struct model_shape *shape) {
    char path[4096], text[CONFIG_BYTES];
    size_t bytes = 0;
    TRY(model_path(folder, "config.json", path));
    TRY(make_config(shape, text, sizeof(text), &bytes));
    struct files_writer writer;
    TRY(files_create(&writer, path));
    enum status status = files_write(&writer, text, bytes);
    if (status == STATUS_OK) status = files_commit(&writer);
    files_abandon(&writer);
    return status;
}
