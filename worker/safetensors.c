#include "worker/safetensors.h"

#include "base/assert.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES  ((uint64_t)64 << 20) /* of one write */
#define CONFIG_BYTES 4096
#define PREFIX_BYTES ((size_t)8) /* the header's length */
/* Braces and metadata; the most that a tensor takes beside its name, of which each byte may be
 * escaped: type, shape and offsets. */
#define HEADER_BYTES_ONCE ((size_t)256)
#define HEADER_BYTES_EACH ((size_t)TENSOR_DIMS_MAX * 24 + 192)
#define ESCAPE_BYTES      ((size_t)6)

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

static void write_item(struct json *json, const struct safetensors_item *item, uint64_t begin) {
    json_open_object(json, item->name);
    json_text(json, "dtype", dtype_name(item->dtype));
    json_open_array(json, "shape");
    for (uint32_t d = 0; d < item->dims; d++)
        json_int(json, NULL, (int64_t)item->shape[d]);
    json_close_array(json);
    json_open_array(json, "data_offsets");
    json_int(json, NULL, (int64_t)begin);
    json_int(json, NULL, (int64_t)(begin + item->bytes));
    json_close_array(json);
    json_close_object(json);
}

void safetensors_make_header(const struct safetensors_item *items, uint64_t count, uint8_t **header,
                             size_t *bytes) {
    size_t capacity = HEADER_BYTES_ONCE, length = 0;
    for (uint64_t i = 0; i < count; i++)
        capacity += strlen(items[i].name) * ESCAPE_BYTES + HEADER_BYTES_EACH;
    uint8_t *made = memory_zeroed(PREFIX_BYTES + capacity + 8, 1);
    char *text = (char *)made + PREFIX_BYTES;
    struct json json;
    uint64_t begin = 0;
    json_begin(&json, text, capacity);
    json_open_object(&json, "__metadata__");
    json_text(&json, "format", "pt");
    json_close_object(&json);
    for (uint64_t i = 0; i < count; i++) {
        write_item(&json, &items[i], begin);
        begin += items[i].bytes;
    }
    enum status status = json_end(&json, &length);
    ASSERT_OP(status, ==, STATUS_OK); // the capacity is for the worst case
    while (length % 8 != 0)
        text[length++] = ' ';
    uint64_t prefix = length;
    memcpy(made, &prefix, PREFIX_BYTES);
    *header = made;
    *bytes = PREFIX_BYTES + length;
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

/* Header, then each tensor's data. */
static enum status write_all(struct files_writer *writer, const struct entry *sorted,
                             uint64_t count, const float *weights) {
    struct safetensors_item *items = memory_zeroed((size_t)count, sizeof(*items));
    uint8_t *header;
    size_t bytes;
    for (uint64_t i = 0; i < count; i++) {
        const struct tensor *tensor = sorted[i].tensor;
        items[i] = (struct safetensors_item){.name = tensor->name,
                                             .dtype = DTYPE_F32,
                                             .dims = tensor->dims,
                                             .shape = tensor->shape,
                                             .bytes = tensor_bytes(tensor)};
    }
    safetensors_make_header(items, count, &header, &bytes);
    enum status status = files_write(writer, header, bytes);
    for (uint64_t i = 0; status == STATUS_OK && i < count; i++)
        status = write_pieces(writer, weights + sorted[i].offset, items[i].bytes);
    free(header);
    free(items);
    return status == STATUS_OK ? files_commit(writer) : status;
}

static enum status model_path(const char *folder, const char *name, char path[4096]) {
    return files_join(path, 4096, folder, name) == STATUS_OK ? STATUS_OK : STATUS_IO;
}

enum status safetensors_write(const char *folder, const struct plan *plan, const float *weights) {
    char path[4096];
    struct files_writer writer;
    TRY(model_path(folder, "model.safetensors", path));
    TRY(files_create(&writer, path));
    struct entry *sorted = sort_tensors(plan);
    enum status status = write_all(&writer, sorted, plan->tensor_count, weights);
    files_abandon(&writer);
    free(sorted);
    return status;
}

/* Tokens that open and close a text, for generate(). Where the vocabulary has none it must be told
 * so: its own defaults may be ordinary tokens here, or none. */
static void write_ends(struct json *json, int64_t vocab) {
    static const struct {
        int64_t vocab, bos, eos;
    } known[] = {{50257, 50256, 50256}, {128256, 128000, 128001}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].vocab != vocab) continue;
        json_int(json, "bos_token_id", known[i].bos);
        json_int(json, "eos_token_id", known[i].eos);
        return;
    }
    json_real(json, "bos_token_id", NAN, 1); // written as null
    json_real(json, "eos_token_id", NAN, 1);
}

/* In few digits where they bring the same bits back. */
static void write_real(struct json *json, const char *key, double value) {
    char text[32];
    snprintf(text, sizeof(text), "%.6g", value);
    json_real(json, key, value, strtod(text, NULL) == value ? 6 : 17);
}

static void write_architecture(struct json *json, const char *type, const char *class) {
    json_text(json, "model_type", type);
    json_open_array(json, "architectures");
    json_text(json, NULL, class);
    json_close_array(json);
}

static void write_gpt2(struct json *json, const struct model_shape *shape) {
    write_architecture(json, "gpt2", "GPT2LMHeadModel");
    json_int(json, "vocab_size", shape->vocab);
    json_int(json, "n_positions", shape->positions);
    json_int(json, "n_embd", shape->channels);
    json_int(json, "n_layer", shape->layers);
    json_int(json, "n_head", shape->heads);
    json_int(json, "n_inner", shape->intermediate);
    json_text(json, "activation_function", "gelu_new");
    write_real(json, "layer_norm_epsilon", shape->norm_eps);
    json_int(json, "resid_pdrop", 0);
    json_int(json, "embd_pdrop", 0);
    json_int(json, "attn_pdrop", 0);
}

static void write_llama(struct json *json, const struct model_shape *shape) {
    write_architecture(json, "llama", "LlamaForCausalLM");
    json_int(json, "vocab_size", shape->vocab);
    json_int(json, "max_position_embeddings", shape->positions);
    json_int(json, "hidden_size", shape->channels);
    json_int(json, "num_hidden_layers", shape->layers);
    json_int(json, "num_attention_heads", shape->heads);
    json_int(json, "num_key_value_heads", shape->kv_heads);
    json_int(json, "intermediate_size", shape->intermediate);
    json_text(json, "hidden_act", "silu");
    write_real(json, "rms_norm_eps", shape->norm_eps);
    write_real(json, "rope_theta", shape->rope_theta);
    json_bool(json, "attention_bias", false);
    json_bool(json, "mlp_bias", false);
}

static enum status make_config(const struct model_shape *shape, char *text, size_t capacity,
                               size_t *bytes) {
    struct json json;
    json_begin(&json, text, capacity);
    if (shape->family == model_family_find("llama")) {
        write_llama(&json, shape);
    } else {
        write_gpt2(&json, shape);
    }
    json_bool(&json, "tie_word_embeddings", shape->tied_head);
    json_bool(&json, "use_cache", true);
    json_text(&json, "torch_dtype", "float32");
    write_ends(&json, shape->vocab);
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
