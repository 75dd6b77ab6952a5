#include "worker/hf_config.h"

#include "base/files.h"
#include "base/json_read.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define CONFIG_NODES_MAX 65536u
#define NUMBER_MAX       INT32_MAX

struct config {
    const char *name; /* for messages */
    struct json_tree tree;
};

/* A member's value; JSON_NONE when it is not there or null, which means the default. */
static uint32_t member(const struct config *config, const char *key) {
    uint32_t node = json_read_member(&config->tree, 0, key);
    if (node != JSON_NONE && config->tree.nodes[node].kind == JSON_NULL) return JSON_NONE;
    return node;
}

/* A value as it stands in the file, for messages. */
static enum status refuse(const struct config *config, enum status status, const char *key,
                          const char *allowed) {
    char value[64] = "is not there";
    uint32_t node = member(config, key);
    if (node != JSON_NONE) {
        const struct json_node *at = &config->tree.nodes[node];
        if (at->kind == JSON_TEXT) {
            snprintf(value, sizeof value, "is \"%.48s\"", json_read_text(&config->tree, node));
        } else if (at->kind == JSON_ARRAY || at->kind == JSON_OBJECT) {
            snprintf(value, sizeof value, "is a list or an object");
        } else {
            int length = at->end - at->begin < 48 ? (int)(at->end - at->begin) : 48;
            snprintf(value, sizeof value, "is %.*s", length, config->tree.text + at->begin);
        }
    }
    log_error("%s: %s %s, allowed: %s", config->name, key, value, allowed);
    return status;
}

/* A whole number, 1 or more; `otherwise` where it is not there, 0: it must be. */
static enum status read_count(const struct config *config, const char *key, int64_t otherwise,
                              int64_t *count) {
    uint32_t node = member(config, key);
    int64_t value = otherwise;
    if (node != JSON_NONE && !json_read_int(&config->tree, node, &value)) value = 0;
    if (value < 1 || value > NUMBER_MAX)
        return refuse(config, STATUS_CORRUPT, key, "a whole number from 1 to 2147483647");
    *count = value;
    return STATUS_OK;
}

struct count_field {
    const char *key;
    int64_t *count;
};

/* Whole numbers that must be there. */
static enum status read_counts(const struct config *config, const struct count_field *fields,
                               size_t field_count) {
    for (size_t i = 0; i < field_count; i++)
        TRY(read_count(config, fields[i].key, 0, fields[i].count));
    return STATUS_OK;
}

static enum status read_positive(const struct config *config, const char *key, double otherwise,
                                 double *value) {
    uint32_t node = member(config, key);
    *value = otherwise;
    if (node == JSON_NONE) return STATUS_OK;
    if (!json_read_real(&config->tree, node, value) || !(*value > 0) || *value > 1e30)
        return refuse(config, STATUS_CORRUPT, key, "a number above 0");
    return STATUS_OK;
}

static enum status read_bool(const struct config *config, const char *key, bool otherwise,
                             bool *value) {
    uint32_t node = member(config, key);
    *value = otherwise;
    if (node == JSON_NONE) return STATUS_OK;
    enum json_kind kind = config->tree.nodes[node].kind;
    if (kind != JSON_TRUE && kind != JSON_FALSE)
        return refuse(config, STATUS_CORRUPT, key, "true, false");
    *value = kind == JSON_TRUE;
    return STATUS_OK;
}

/* A switch of which our models know one setting, the default. */
static enum status demand_bool(const struct config *config, const char *key, bool wanted) {
    bool value = wanted;
    TRY(read_bool(config, key, wanted, &value));
    if (value == wanted) return STATUS_OK;
    return refuse(config, STATUS_UNSUPPORTED, key, wanted ? "true" : "false");
}

/* One of two texts, of which the default is one. */
static enum status demand_text(const struct config *config, const char *key, const char *a,
                               const char *b) {
    char allowed[64];
    uint32_t node = member(config, key);
    if (node == JSON_NONE) return STATUS_OK;
    if (config->tree.nodes[node].kind == JSON_TEXT) {
        const char *value = json_read_text(&config->tree, node);
        if (strcmp(value, a) == 0 || strcmp(value, b) == 0) return STATUS_OK;
    }
    snprintf(allowed, sizeof allowed, "%s, %s", a, b);
    return refuse(config, STATUS_UNSUPPORTED, key, allowed);
}

static enum status demand_absent(const struct config *config, const char *key) {
    if (member(config, key) == JSON_NONE) return STATUS_OK;
    return refuse(config, STATUS_UNSUPPORTED, key, "null");
}

static enum status read_gpt2(const struct config *config, struct model_shape *shape) {
    const struct count_field fields[] = {{"n_layer", &shape->layers},
                                         {"n_embd", &shape->channels},
                                         {"n_head", &shape->heads},
                                         {"n_positions", &shape->positions}};
    TRY(read_counts(config, fields, sizeof fields / sizeof fields[0]));
    TRY(read_count(config, "n_inner", 4 * shape->channels, &shape->intermediate));
    TRY(read_positive(config, "layer_norm_epsilon", 1e-5, &shape->norm_eps));
    shape->kv_heads = shape->heads;
    shape->tied_head = true;
    TRY(demand_bool(config, "tie_word_embeddings", true));
    TRY(demand_text(config, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    TRY(demand_bool(config, "scale_attn_weights", true));
    TRY(demand_bool(config, "scale_attn_by_inverse_layer_idx", false));
    return demand_bool(config, "add_cross_attention", false);
}

/* The base of the rotations, and that they are not scaled; newer files keep both in an object. */
static enum status read_rotation(const struct config *config, struct model_shape *shape) {
    const struct json_tree *tree = &config->tree;
    uint32_t parameters = member(config, "rope_parameters");
    TRY(demand_absent(config, "rope_scaling"));
    TRY(read_positive(config, "rope_theta", 10000, &shape->rope_theta));
    if (parameters == JSON_NONE) return STATUS_OK;
    uint32_t type = json_read_member(tree, parameters, "rope_type");
    uint32_t theta = json_read_member(tree, parameters, "rope_theta");
    bool sound = type == JSON_NONE || (tree->nodes[type].kind == JSON_TEXT &&
                                       strcmp(json_read_text(tree, type), "default") == 0);
    if (!sound || tree->nodes[parameters].kind != JSON_OBJECT || theta == JSON_NONE ||
        !json_read_real(tree, theta, &shape->rope_theta) || !(shape->rope_theta > 0))
        return refuse(config, STATUS_UNSUPPORTED, "rope_parameters",
                      "rope_type \"default\" with a rope_theta above 0");
    return STATUS_OK;
}

/* Only where it says what follows from the others. */
static enum status check_head_channels(const struct config *config,
                                       const struct model_shape *shape) {
    int64_t channels = 0;
    if (member(config, "head_dim") == JSON_NONE) return STATUS_OK;
    TRY(read_count(config, "head_dim", 0, &channels));
    if (channels * shape->heads == shape->channels) return STATUS_OK;
    return refuse(config, STATUS_UNSUPPORTED, "head_dim", "hidden_size / num_attention_heads");
}

static enum status read_llama(const struct config *config, struct model_shape *shape) {
    const struct count_field fields[] = {{"num_hidden_layers", &shape->layers},
                                         {"hidden_size", &shape->channels},
                                         {"num_attention_heads", &shape->heads},
                                         {"max_position_embeddings", &shape->positions},
                                         {"intermediate_size", &shape->intermediate}};
    TRY(read_counts(config, fields, sizeof fields / sizeof fields[0]));
    TRY(read_count(config, "num_key_value_heads", shape->heads, &shape->kv_heads));
    TRY(read_positive(config, "rms_norm_eps", 1e-6, &shape->norm_eps));
    TRY(read_rotation(config, shape));
    TRY(read_bool(config, "tie_word_embeddings", false, &shape->tied_head));
    TRY(demand_text(config, "hidden_act", "silu", "swish"));
    TRY(demand_bool(config, "attention_bias", false));
    TRY(demand_bool(config, "mlp_bias", false));
    return check_head_channels(config, shape);
}

/* model_type is also the family's name. */
static const struct {
    const char *model_type;
    enum status (*read)(const struct config *config, struct model_shape *shape);
} readers[] = {{"gpt2", read_gpt2}, {"llama", read_llama}};

static enum status read_shape(const struct config *config, struct model_shape *shape) {
    char why[256];
    uint32_t type = member(config, "model_type");
    if (config->tree.nodes[0].kind != JSON_OBJECT) {
        log_error("%s is no JSON object", config->name);
        return STATUS_CORRUPT;
    }
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
        if (type == JSON_NONE || config->tree.nodes[type].kind != JSON_TEXT ||
            strcmp(json_read_text(&config->tree, type), readers[i].model_type) != 0)
            continue;
        shape->family = model_family_find(readers[i].model_type);
        TRY(read_count(config, "vocab_size", 0, &shape->vocab));
        TRY(readers[i].read(config, shape));
        if (model_shape_check(shape, why, sizeof why) == STATUS_OK) return STATUS_OK;
        log_error("%s: %s", config->name, why);
        return STATUS_UNSUPPORTED;
    }
    return refuse(config, STATUS_UNSUPPORTED, "model_type", "gpt2, llama");
}

enum status hf_config_parse(const char *name, char *text, size_t bytes, struct model_shape *shape) {
    struct config config = {.name = name};
    struct model_shape read = {0};
    char why[256];
    enum status status =
        json_read_parse(&config.tree, text, bytes, CONFIG_NODES_MAX, why, sizeof why);
    if (status != STATUS_OK) {
        log_error("%s: %s", name, why);
        return status;
    }
    status = read_shape(&config, &read);
    json_read_free(&config.tree);
    if (status == STATUS_OK) *shape = read;
    return status;
}

enum status hf_config_read(const char *path, struct model_shape *shape) {
    char inside[4096], *text;
    size_t bytes = 0;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        if (files_join(inside, sizeof inside, path, "config.json") != STATUS_OK) return STATUS_IO;
        path = inside;
    }
    enum status status = files_read(path, CONFIG_BYTES_MAX, &text, &bytes);
    if (status == STATUS_INVALID) return STATUS_IO; // a device, or far too long
    TRY(status);
    status = hf_config_parse(path, text, bytes, shape);
    free(text);
    return status;
}

enum status hf_config_of_job(const struct job *job, int64_t data_vocab, struct model_shape *shape) {
    char why[256];
    int64_t vocab = job->vocab != 0 ? job->vocab : data_vocab;
    struct model_shape read;
    if (!job_model_is_path(job->model)) {
        if (model_shape_parse(job->model, vocab, job->seq_len, shape, why, sizeof why) == STATUS_OK)
            return STATUS_OK;
        log_error("--model %s: %s", job->model, why);
        return STATUS_INVALID;
    }
    TRY(hf_config_read(job->model, &read));
    if (job->vocab != 0 && job->vocab != read.vocab) {
        log_error("--vocab %" PRId64 " is not %s's vocab_size %" PRId64 "; leave it out",
                  job->vocab, job->model, read.vocab);
        return STATUS_INVALID;
    }
    if (job->seq_len > read.positions) {
        log_error("--seq-len %" PRId64 " is more than %s's positions, allowed: 1 to %" PRId64,
                  job->seq_len, job->model, read.positions);
        return STATUS_INVALID;
    }
    *shape = read;
    return STATUS_OK;
}
