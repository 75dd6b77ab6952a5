/* The header of a safetensors file: from JSON to tensors, and every rule about them. */
#include "base/json_read.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/safetensors_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_BYTES 8u /* the header's length */
/* A tensor: key, object, and three members of which two are arrays. Metadata: two texts each. */
#define NODES_MAX (8u + SAFETENSORS_TENSORS_MAX * (2 + 6 + SAFETENSORS_DIMS_MAX + 2 + 2))

struct header {
    const char *file; /* for messages */
    struct json_tree tree;
    struct safetensors_tensor *tensors;
    uint64_t count;
};

static enum status refuse(const struct header *header, const char *tensor, const char *what) {
    log_error("%s: tensor %.128s: %s", header->file, tensor, what);
    return STATUS_CORRUPT;
}

/* The three members, each there once (json_read refuses a second), and no other. */
static bool find_members(const struct json_tree *tree, uint32_t object, uint32_t *dtype,
                         uint32_t *shape, uint32_t *offsets) {
    if (tree->nodes[object].kind != JSON_OBJECT || tree->nodes[object].length != 3) return false;
    *dtype = json_read_member(tree, object, "dtype");
    *shape = json_read_member(tree, object, "shape");
    *offsets = json_read_member(tree, object, "data_offsets");
    if (*dtype == JSON_NONE || *shape == JSON_NONE || *offsets == JSON_NONE) return false;
    return tree->nodes[*dtype].kind == JSON_TEXT && tree->nodes[*shape].kind == JSON_ARRAY &&
           tree->nodes[*offsets].kind == JSON_ARRAY && tree->nodes[*offsets].length == 2;
}

static bool read_size(const struct json_tree *tree, uint32_t node, uint64_t *size) {
    int64_t value = 0;
    if (!json_read_int(tree, node, &value) || value < 0) return false;
    *size = (uint64_t)value;
    return true;
}

static enum status read_shape(const struct header *header, uint32_t array,
                              struct safetensors_tensor *tensor) {
    const struct json_node *nodes = header->tree.nodes;
    if (nodes[array].length > SAFETENSORS_DIMS_MAX)
        return refuse(header, tensor->name, "more than 8 dimensions");
    tensor->count = 1;
    for (uint32_t at = array + 1; at < nodes[array].next; at = nodes[at].next) {
        uint64_t *size = &tensor->shape[tensor->dims++];
        if (!read_size(&header->tree, at, size))
            return refuse(header, tensor->name, "a dimension is no whole number from 0 up");
        if (!memory_multiply(tensor->count, *size, &tensor->count))
            return refuse(header, tensor->name, "its shape's product is beyond 64 bits");
    }
    return STATUS_OK;
}

/* Key and object -> the next tensor; its data counted from the data's start. */
static enum status read_tensor(struct header *header, uint32_t key) {
    const struct json_tree *tree = &header->tree;
    struct safetensors_tensor *tensor = &header->tensors[header->count];
    uint32_t dtype, shape, offsets;
    uint64_t bits;
    tensor->name = json_read_text(tree, key);
    size_t length = tree->nodes[key].length;
    if (length == 0 || length > SAFETENSORS_NAME_MAX)
        return refuse(header, tensor->name, "its name has not 1 to 512 bytes");
    if (!find_members(tree, key + 1, &dtype, &shape, &offsets))
        return refuse(header, tensor->name,
                      "is not described by dtype (a text), shape and data_offsets (two numbers)");
    if (!dtype_find(json_read_text(tree, dtype), &tensor->dtype))
        return refuse(header, tensor->name, "its dtype is unknown");
    TRY(read_shape(header, shape, tensor));
    if (!read_size(tree, offsets + 1, &tensor->begin) ||
        !read_size(tree, offsets + 2, &tensor->end) || tensor->end < tensor->begin)
        return refuse(header, tensor->name,
                      "its data_offsets are not two whole numbers from 0 up, in order");
    if (!memory_multiply(tensor->count, dtype_bits(tensor->dtype), &bits))
        return refuse(header, tensor->name, "its size is beyond 64 bits");
    if (bits % 8 != 0) return refuse(header, tensor->name, "its size is no whole number of bytes");
    if (bits / 8 != tensor->end - tensor->begin)
        return refuse(header, tensor->name, "its data_offsets do not fit its dtype and shape");
    header->count++;
    return STATUS_OK;
}

static enum status check_metadata(const struct header *header, uint32_t object) {
    const struct json_node *nodes = header->tree.nodes;
    bool sound = nodes[object].kind == JSON_OBJECT;
    for (uint32_t key = object + 1; sound && key < nodes[object].next; key = nodes[key + 1].next)
        sound = nodes[key + 1].kind == JSON_TEXT;
    if (sound) return STATUS_OK;
    log_error("%s: its __metadata__ is no object of texts", header->file);
    return STATUS_CORRUPT;
}

static enum status read_members(struct header *header) {
    const struct json_node *nodes = header->tree.nodes;
    for (uint32_t key = 1; key < nodes[0].next; key = nodes[key + 1].next) {
        if (strcmp(json_read_text(&header->tree, key), "__metadata__") == 0) {
            TRY(check_metadata(header, key + 1));
        } else if (header->count == SAFETENSORS_TENSORS_MAX) {
            log_error("%s: more than %d tensors", header->file, SAFETENSORS_TENSORS_MAX);
            return STATUS_CORRUPT;
        } else {
            TRY(read_tensor(header, key));
        }
    }
    return STATUS_OK;
}

static int compare_places(const void *left, const void *right) {
    const struct safetensors_tensor *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* No holes, no overlaps, and the file ends where the last tensor does. */
static enum status check_places(struct header *header, uint64_t data_begin, uint64_t file_bytes) {
    uint64_t end = 0, data_bytes = file_bytes - data_begin;
    if (header->count > 1)
        qsort(header->tensors, (size_t)header->count, sizeof *header->tensors, compare_places);
    for (uint64_t i = 0; i < header->count; i++) {
        struct safetensors_tensor *tensor = &header->tensors[i];
        if (tensor->begin > end) return refuse(header, tensor->name, "a hole before its data");
        if (tensor->begin < end)
            return refuse(header, tensor->name, "its data overlaps another tensor's");
        end = tensor->end;
        if (end > data_bytes)
            return refuse(header, tensor->name, "its data is not all in the file: cut short?");
        tensor->begin += data_begin;
        tensor->end += data_begin;
    }
    if (end == data_bytes) return STATUS_OK;
    log_error("%s: %" PRIu64 " bytes behind the last tensor's data", header->file,
              data_bytes - end);
    return STATUS_CORRUPT;
}

static enum status parse_tree(struct header *header, char *text, uint64_t bytes) {
    char why[256];
    if (bytes == 0 || text[0] != '{') {
        log_error("%s: its header does not begin with {", header->file);
        return STATUS_CORRUPT;
    }
    enum status status =
        json_read_parse(&header->tree, text, (size_t)bytes, NODES_MAX, why, sizeof why);
    if (status != STATUS_OK) {
        log_error("%s: its header: %s", header->file, why);
        return status;
    }
    for (uint64_t at = header->tree.nodes[0].end; at < bytes; at++) {
        if (text[at] == ' ') continue;
        log_error("%s: its header is padded with something else than spaces", header->file);
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}

enum status safetensors_parse_header(const char *name, char *text, uint64_t bytes,
                                     uint64_t file_bytes, struct safetensors_tensor **tensors,
                                     uint64_t *count) {
    struct header header = {.file = name};
    if (bytes > SAFETENSORS_HEADER_MAX || file_bytes < PREFIX_BYTES ||
        bytes > file_bytes - PREFIX_BYTES) {
        log_error("%s: a header of %" PRIu64 " bytes is longer than 16 MiB or than the file", name,
                  bytes);
        return STATUS_CORRUPT;
    }
    enum status status = parse_tree(&header, text, bytes);
    if (status == STATUS_OK) {
        size_t most = (size_t)header.tree.nodes[0].length;
        if (most > SAFETENSORS_TENSORS_MAX) most = SAFETENSORS_TENSORS_MAX;
        header.tensors = memory_zeroed(most + 1, sizeof *header.tensors);
        status = read_members(&header);
    }
    if (status == STATUS_OK) status = check_places(&header, PREFIX_BYTES + bytes, file_bytes);
    json_read_free(&header.tree);
    if (status != STATUS_OK) {
        free(header.tensors);
        return status;
    }
    *tensors = header.tensors;
    *count = header.count;
    return STATUS_OK;
}
