#include "worker/safetensors_export.h"

#include "base/assert.h"
#include "base/files.h"
#include "base/json.h"
#include "base/json_read.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/hf_weights.h"
#include "worker/safetensors.h"
#include "worker/safetensors_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_VALUES     ((uint64_t)16384)
#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define CONFIG_NODES_MAX 65536u
#define SIDE_BYTES_MAX   ((size_t)64 << 20)
#define FILE_NAME_BYTES  48
#define SINGLE_NAME      "model.safetensors"
#define INDEX_NAME       "model.safetensors.index.json"

struct export {
    const struct safetensors_export *wanted;
    struct safetensors model;
    const struct safetensors_tensor **tensors; /* [count] what is written */
    uint32_t *files;                           /* [count] in which file, 0-based, rising */
    uint64_t count;
    uint32_t file_count;
    uint64_t values;
};

static const char *torch_name(enum dtype dtype) {
    return dtype == DTYPE_F32 ? "float32" : dtype == DTYPE_F16 ? "float16" : "bfloat16";
}

static uint64_t new_bytes(const struct export *export, uint64_t index) {
    return export->tensors[index]->count * (dtype_bits(export->wanted->dtype) / 8);
}

/* What is written, and in which file: as many tensors each as fit. */
static enum status choose(struct export *export) {
    uint64_t used = 0;
    for (uint64_t i = 0; i < export->model.count; i++) {
        const struct safetensors_tensor *tensor = &export->model.tensors[i];
        if (hf_weights_is_buffer(tensor->name)) continue;
        if (!dtype_is_weight(tensor->dtype)) {
            log_error("%s: tensor %.128s is of %s, and not of a weights' type (F32, BF16, F16)",
                      export->model.files[tensor->file].path, tensor->name,
                      dtype_name(tensor->dtype));
            return STATUS_UNSUPPORTED;
        }
        uint64_t index = export->count++;
        export->tensors[index] = tensor;
        uint64_t bytes = new_bytes(export, index);
        if (used > 0 &&
            (bytes > export->wanted->shard_bytes || used > export->wanted->shard_bytes - bytes)) {
            export->file_count++;
            used = 0;
        }
        used += bytes;
        export->files[index] = export->file_count;
        export->values += tensor->count;
    }
    export->file_count++;
    return STATUS_OK;
}

static void file_name(const struct export *export, uint32_t file, char name[FILE_NAME_BYTES]) {
    if (export->file_count == 1) {
        snprintf(name, FILE_NAME_BYTES, SINGLE_NAME);
    } else {
        snprintf(name, FILE_NAME_BYTES, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors",
                 file + 1, export->file_count);
    }
}

static enum status create(const struct export *export, const char *name,
                          struct files_writer *writer) {
    char path[4096];
    TRY(files_join(path, sizeof path, export->wanted->to, name));
    return files_create(writer, path) == STATUS_OK ? STATUS_OK : STATUS_DENIED;
}

static enum status finish(struct files_writer *writer, enum status status) {
    if (status == STATUS_OK && files_commit(writer) != STATUS_OK) status = STATUS_DENIED;
    files_abandon(writer);
    return status;
}

static enum status write_file(const struct export *export, const char *name, const void *data,
                              size_t bytes) {
    struct files_writer writer;
    TRY(create(export, name, &writer));
    return finish(&writer,
                  files_write(&writer, data, bytes) == STATUS_OK ? STATUS_OK : STATUS_DENIED);
}

static enum status write_tensor(const struct export *export, struct files_writer *writer,
                                const struct safetensors_tensor *tensor) {
    static const char *const advice = "infinite in f16; take bf16";
    float values[PIECE_VALUES];
    uint8_t raw[PIECE_VALUES * sizeof(float)];
    enum dtype dtype = export->wanted->dtype;
    for (uint64_t at = 0; at < tensor->count; at += PIECE_VALUES) {
        uint64_t left = tensor->count - at, part = left < PIECE_VALUES ? left : PIECE_VALUES;
        TRY(safetensors_read(&export->model, tensor, at, part, values));
        if (dtype_encode(dtype, values, (size_t)part, raw) > 0) {
            log_error("%s: tensor %.128s: a value would become %s",
                      export->model.files[tensor->file].path, tensor->name,
                      dtype == DTYPE_F16 ? advice : "infinite; take f32");
            return STATUS_UNSUPPORTED;
        }
        if (files_write(writer, raw, (size_t)part * (dtype_bits(dtype) / 8)) != STATUS_OK)
            return STATUS_DENIED;
    }
    return STATUS_OK;
}

/* File number `file`: of the tensors first .. first + count - 1. */
static enum status write_shard(const struct export *export, uint32_t file, uint64_t first,
                               uint64_t count) {
    char name[FILE_NAME_BYTES];
    uint8_t *header;
    size_t header_bytes;
    struct files_writer writer;
    file_name(export, file, name);
    TRY(create(export, name, &writer));
    struct safetensors_item *items = memory_zeroed((size_t)count + 1, sizeof *items);
    for (uint64_t i = 0; i < count; i++) {
        const struct safetensors_tensor *tensor = export->tensors[first + i];
        items[i] = (struct safetensors_item){.name = tensor->name,
                                             .dtype = export->wanted->dtype,
                                             .dims = tensor->dims,
                                             .shape = tensor->shape,
                                             .bytes = new_bytes(export, first + i)};
    }
    safetensors_make_header(items, count, &header, &header_bytes);
    enum status status =
        files_write(&writer, header, header_bytes) == STATUS_OK ? STATUS_OK : STATUS_DENIED;
    for (uint64_t i = 0; status == STATUS_OK && i < count; i++)
        status = write_tensor(export, &writer, export->tensors[first + i]);
    free(header);
    free(items);
    return finish(&writer, status);
}

static enum status write_shards(const struct export *export) {
    uint64_t first = 0;
    for (uint32_t file = 0; file < export->file_count; file++) {
        uint64_t count = 0;
        while (first + count < export->count && export->files[first + count] == file)
            count++;
        TRY(write_shard(export, file, first, count));
        first += count;
    }
    return STATUS_OK;
}

static enum status write_index(const struct export *export) {
    struct json json;
    size_t capacity = 256, bytes = 0;
    uint64_t total = export->values * (dtype_bits(export->wanted->dtype) / 8);
    for (uint64_t i = 0; i < export->count; i++)
        capacity += strlen(export->tensors[i]->name) * 6 + FILE_NAME_BYTES + 8;
    char *text = memory_zeroed(capacity, 1);
    json_begin(&json, text, capacity);
    json_open_object(&json, "metadata");
    json_int(&json, "total_size", (int64_t)total);
    json_close_object(&json);
    json_open_object(&json, "weight_map");
    for (uint64_t i = 0; i < export->count; i++) {
        char name[FILE_NAME_BYTES];
        file_name(export, export->files[i], name);
        json_text(&json, export->tensors[i]->name, name);
    }
    json_close_object(&json);
    enum status status = json_end(&json, &bytes);
    ASSERT_OP(status, ==, STATUS_OK); // the capacity is for the worst case
    status = write_file(export, INDEX_NAME, text, bytes);
    free(text);
    return status;
}

/* text [bytes], the source's, with the value of its torch_dtype replaced, or with one put behind
 * the first brace where it has none. `tree` was parsed from a copy: it says where the value is. */
static enum status write_config(const struct export *export, const char *text, size_t bytes,
                                const struct json_tree *tree) {
    static const char *const keys[] = {"torch_dtype", "dtype"};
    char value[64];
    size_t begin = tree->nodes[0].begin + 1, end = begin;
    snprintf(value, sizeof value, "\"torch_dtype\":\"%s\"%s", torch_name(export->wanted->dtype),
             tree->nodes[0].length > 0 ? "," : "");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t node = json_read_member(tree, 0, keys[i]);
        if (node == JSON_NONE) continue;
        begin = tree->nodes[node].begin;
        end = tree->nodes[node].end;
        snprintf(value, sizeof value, "\"%s\"", torch_name(export->wanted->dtype));
        break;
    }
    size_t value_bytes = strlen(value);
    char *changed = memory_zeroed(bytes + value_bytes, 1);
    memcpy(changed, text, begin);
    // NOLINTNEXTLINE(bugprone-not-null-terminated-result): the rest of the text follows
    memcpy(changed + begin, value, value_bytes);
    memcpy(changed + begin + value_bytes, text + end, bytes - end);
    enum status status =
        write_file(export, "config.json", changed, begin + value_bytes + (bytes - end));
    free(changed);
    return status;
}

static enum status copy_config(const struct export *export) {
    char path[4096], why[256], *text = NULL;
    size_t bytes = 0;
    struct json_tree tree = {0};
    TRY(files_join(path, sizeof path, export->wanted->from, "config.json"));
    enum status status = files_read(path, CONFIG_BYTES_MAX, &text, &bytes);
    if (status == STATUS_INVALID) return STATUS_IO; // a device, or far too long
    TRY(status);
    char *scratch = memory_zeroed(bytes + 1, 1);
    memcpy(scratch, text, bytes);
    status = json_read_parse(&tree, scratch, bytes, CONFIG_NODES_MAX, why, sizeof why);
    if (status == STATUS_OK && tree.nodes[0].kind != JSON_OBJECT) {
        snprintf(why, sizeof why, "no object");
        status = STATUS_CORRUPT;
    }
    if (status == STATUS_OK) {
        status = write_config(export, text, bytes, &tree);
    } else {
        log_error("%s: %s", path, why);
    }
    json_read_free(&tree);
    free(scratch);
    free(text);
    return status;
}

/* What people keep beside weights, as it is. */
static enum status copy_side_files(const struct export *export) {
    static const char *const names[] = {
        "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "vocab.json",     "merges.txt",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[4096], *content = NULL;
        size_t bytes = 0;
        TRY(files_join(path, sizeof path, export->wanted->from, names[i]));
        if (access(path, F_OK) != 0) continue;
        if (files_read(path, SIDE_BYTES_MAX, &content, &bytes) != STATUS_OK) return STATUS_IO;
        enum status status = write_file(export, names[i], content, bytes);
        free(content);
        TRY(status);
    }
    return STATUS_OK;
}

/* A reader would take a single file for the model, whatever else is beside it. */
static enum status check_target(const char *to) {
    static const char *const names[] = {SINGLE_NAME, INDEX_NAME};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[4096];
        TRY(files_join(path, sizeof path, to, names[i]));
        if (access(path, F_OK) != 0) continue;
        log_error("%s is there already; give another folder", path);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

static enum status write_all(struct export *export) {
    TRY(choose(export));
    TRY(check_target(export->wanted->to));
    if (files_make_folder(export->wanted->to) != STATUS_OK) return STATUS_DENIED;
    TRY(copy_config(export));
    TRY(copy_side_files(export));
    TRY(write_shards(export));
    return export->file_count > 1 ? write_index(export) : STATUS_OK;
}

enum status safetensors_export(const struct safetensors_export *wanted,
                               struct safetensors_exported *done) {
    struct export export = {.wanted = wanted};
    ASSERT(dtype_is_weight(wanted->dtype) && wanted->shard_bytes >= 1);
    TRY(safetensors_open(&export.model, wanted->from));
    export.tensors = memory_zeroed((size_t) export.model.count + 1, sizeof(void *));
    export.files = memory_zeroed((size_t) export.model.count + 1, sizeof *export.files);
    enum status status = write_all(&export);
    if (status == STATUS_OK)
        *done =
            (struct safetensors_exported){.tensors = export.count,
                                          .values = export.values,
                                          .files = export.file_count,
                                          .bytes = export.values * (dtype_bits(wanted->dtype) / 8)};
    free(export.files);
    free(export.tensors);
    safetensors_close(&export.model);
    return status;
}
