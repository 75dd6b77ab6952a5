#include "worker/hf_weights.h"

#include "base/log.h"
#include "base/memory.h"
#include "worker/safetensors_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPARE_VALUES 4096u
#define HEAD_NAME      "lm_head.weight"

/* Names for one line; what does not fit is counted. */
struct name_list {
    char text[1024];
    size_t used;
    uint64_t count, left_out;
};

static void list_add(struct name_list *list, const char *name) {
    size_t room = sizeof list->text - list->used;
    size_t wanted = strlen(name) + 2;
    list->count++;
    if (list->left_out > 0 || wanted >= room) {
        list->left_out++;
        return;
    }
    snprintf(list->text + list->used, room, "%s%s", list->used > 0 ? ", " : "", name);
    list->used = strlen(list->text);
}

static void list_log(const struct name_list *list, const char *path, const char *what) {
    char more[48] = "";
    if (list->count == 0) return;
    if (list->left_out > 0) snprintf(more, sizeof more, " and %" PRIu64 " more", list->left_out);
    log_error("%s: %" PRIu64 " %s: %s%s", path, list->count, what, list->text, more);
}

static bool ends_with(const char *text, const char *end) {
    size_t text_bytes = strlen(text), end_bytes = strlen(end);
    return text_bytes >= end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

bool hf_weights_is_buffer(const char *name) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
           ends_with(name, ".rotary_emb.inv_freq");
}

/* By the plan's name, or without the part that base models leave out. */
static const struct safetensors_tensor *find(const struct safetensors *file, const char *name) {
    static const char *const prefixes[] = {"transformer.", "model."};
    const struct safetensors_tensor *found = safetensors_find(file, name);
    for (size_t i = 0; found == NULL && i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length) == 0) found = safetensors_find(file, name + length);
    }
    return found;
}

static void shape_text(uint32_t dims, const uint64_t *shape, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (uint32_t d = 0; d < dims && used < bytes; d++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%" PRIu64, d > 0 ? ", " : "", shape[d]);
    if (used < bytes) snprintf(text + used, bytes - used, "]");
}

static bool same_shape(const struct safetensors_tensor *found, const struct tensor *wanted) {
    if (found->dims != wanted->dims) return false;
    return memcmp(found->shape, wanted->shape, wanted->dims * sizeof wanted->shape[0]) == 0;
}

static enum status check_shape(const char *path, const struct safetensors_tensor *found,
                               const struct tensor *wanted) {
    char is[SAFETENSORS_DIMS_MAX * 24], should[TENSOR_DIMS_MAX * 24];
    if (same_shape(found, wanted)) return STATUS_OK;
    shape_text(found->dims, found->shape, is, sizeof is);
    shape_text(wanted->dims, wanted->shape, should, sizeof should);
    log_error("%s: tensor %.128s: its shape is %s, the model's is %s", path, found->name, is,
              should);
    return STATUS_CORRUPT;
}

/* A head that the plan does not have must be the embeddings once more. */
static enum status check_head(const char *path, const struct safetensors *file,
                              const struct safetensors_tensor *head, const struct plan *plan,
                              const float *weights) {
    const float *embeddings = weights + plan->offsets[0];
    float piece[COMPARE_VALUES];
    TRY(check_shape(path, head, &plan->tensors[0]));
    for (uint64_t at = 0; at < head->count; at += COMPARE_VALUES) {
        uint64_t left = head->count - at, part = left < COMPARE_VALUES ? left : COMPARE_VALUES;
        TRY(safetensors_read(file, head, at, part, piece));
        if (memcmp(piece, embeddings + at, (size_t)part * sizeof *piece) == 0) continue;
        log_error("%s: " HEAD_NAME " is not a copy of %s, to which the model's head is tied", path,
                  plan->tensors[0].name);
        return STATUS_UNSUPPORTED;
    }
    return STATUS_OK;
}

/* Which of the file's tensors is each of the plan's -> found [tensor_count]. */
static enum status match(const char *path, const struct safetensors *file, const struct plan *plan,
                         const struct safetensors_tensor **found, bool *used) {
    struct name_list missing = {0}, unexpected = {0};
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        found[i] = find(file, plan->tensors[i].name);
        if (found[i] == NULL) {
            list_add(&missing, plan->tensors[i].name);
        } else {
            used[found[i] - file->tensors] = true;
        }
    }
    for (uint64_t i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        if (!used[i] && !hf_weights_is_buffer(name) && strcmp(name, HEAD_NAME) != 0)
            list_add(&unexpected, name);
    }
    list_log(&missing, path, "tensors of the model are missing");
    list_log(&unexpected, path, "tensors are none of the model's");
    if (missing.count > 0 || unexpected.count > 0) return STATUS_CORRUPT;
    for (uint64_t i = 0; i < plan->tensor_count; i++)
        TRY(check_shape(path, found[i], &plan->tensors[i]));
    return STATUS_OK;
}

static enum status load(const char *path, const struct safetensors *file, const struct plan *plan,
                        const struct safetensors_tensor **found, bool *used, float *weights) {
    TRY(match(path, file, plan, found, used));
    for (uint64_t i = 0; i < plan->tensor_count; i++)
        TRY(safetensors_read(file, found[i], 0, found[i]->count, weights + plan->offsets[i]));
    const struct safetensors_tensor *head = safetensors_find(file, HEAD_NAME);
    if (head == NULL || used[head - file->tensors]) return STATUS_OK;
    return check_head(path, file, head, plan, weights);
}

enum status hf_weights_load(const char *path, const struct plan *plan, float *weights) {
    struct safetensors file;
    TRY(safetensors_open(&file, path));
    const struct safetensors_tensor **found =
        memory_zeroed((size_t)plan->tensor_count, sizeof *found);
    bool *used = memory_zeroed((size_t)file.count + 1, sizeof *used);
    enum status status = load(path, &file, plan, found, used, weights);
    if (status == STATUS_OK)
        log_info("first weights: %" PRIu64 " values from %s", plan->value_count, path);
    free(used);
    free(found);
    safetensors_close(&file);
    return status;
}
