#include "tools/compare_read.h"

#include "base/files.h"
#include "base/json_read.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METRICS_MAX ((size_t)1 << 30)
#define TEXT_MAX    ((size_t)64 << 20)
#define HEADER_MAX  ((uint64_t)16 << 20)
#define NODES_MAX   4096 /* of a line of metrics */

static enum status fail(struct compare_run *run, enum status status, const char *why) {
    (void)snprintf(run->why, sizeof run->why, "%s", why);
    return status;
}

/* A file of the run's folder -> content, or NULL when it is not there. */
static char *read_text(const struct compare_run *run, const char *name, size_t limit,
                       size_t *bytes) {
    char path[4096];
    char *content = NULL;
    *bytes = 0;
    if (files_join(path, sizeof path, run->folder, name) != STATUS_OK || access(path, R_OK) != 0 ||
        files_read(path, limit, &content, bytes) != STATUS_OK) {
        return NULL;
    }
    return content;
}

/* The first line of `text`, without its end, as a C string; moves on. */
static char *next_line(char **text) {
    char *line = *text;
    if (*line == '\0') return NULL;
    char *end = strchr(line, '\n');
    *text = end != NULL ? end + 1 : line + strlen(line);
    if (end != NULL) *end = '\0';
    return line;
}

static double real(const struct json_tree *tree, uint32_t object, const char *name) {
    double value = NAN;
    uint32_t node = object == JSON_NONE ? JSON_NONE : json_read_member(tree, object, name);
    if (node != JSON_NONE) (void)json_read_real(tree, node, &value);
    return value;
}

/* Validations come in order; one at the step of the last replaces it. */
static void add_validation(struct compare_run *run, double step, double loss) {
    size_t count = run->validation_count;
    if (!isfinite(loss) || !isfinite(step)) return;
    if (count > 0 && run->validations[count - 1].step >= step) {
        run->validations[count - 1].loss = loss;
        return;
    }
    run->validations[run->validation_count++] = (struct compare_validation){step, loss};
}

static void take_step(struct compare_run *run, const struct json_tree *tree, double *val_before) {
    double step = real(tree, 0, "step");
    double val = real(tree, 0, "val_loss");
    uint32_t ms = json_read_member(tree, 0, "ms");
    /* Each line repeats the last validation. */
    if (isfinite(val) && !(val == *val_before)) add_validation(run, step, val);
    *val_before = val;
    run->trace[run->trace_count++] =
        (struct compare_step){.step = step,
                              .loss = real(tree, 0, "loss"),
                              .forward_ms = real(tree, ms, "forward"),
                              .backward_ms = real(tree, ms, "backward"),
                              .wait_ms = real(tree, ms, "wait"),
                              .codec_ms = real(tree, ms, "codec"),
                              .push_bytes = real(tree, 0, "push_bytes"),
                              .pull_bytes = real(tree, 0, "pull_bytes"),
                              .residual_norm = real(tree, 0, "residual_norm"),
                              .codec_bytes = real(tree, 0, "codec_bytes")};
}

/* A broken line (the last one of a killed worker) is passed over. */
static void take_line(struct compare_run *run, char *line, double *val_before) {
    struct json_tree tree = {0};
    char why[128];
    if (json_read_parse(&tree, line, strlen(line), NODES_MAX, why, sizeof why) != STATUS_OK) return;
    uint32_t node = json_read_member(&tree, 0, "schema");
    const char *schema =
        node != JSON_NONE && tree.nodes[node].kind == JSON_TEXT ? json_read_text(&tree, node) : "";
    if (strcmp(schema, "rubato.step/1") == 0) {
        take_step(run, &tree, val_before);
    } else if (strcmp(schema, "rubato.result/1") == 0) {
        add_validation(run, run->steps, real(&tree, 0, "val_loss"));
    }
    json_read_free(&tree);
}

static enum status read_metrics(struct compare_run *run) {
    size_t bytes = 0, lines = 1;
    char *text = read_text(run, "metrics.jsonl", METRICS_MAX, &bytes);
    if (text == NULL) return fail(run, STATUS_IO, "no metrics.jsonl in its folder");
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    run->trace = memory_zeroed(lines, sizeof *run->trace);
    run->validations = memory_zeroed(lines + 1, sizeof *run->validations);
    double val_before = NAN;
    char *rest = text, *line;
    while ((line = next_line(&rest)) != NULL) {
        take_line(run, line, &val_before);
    }
    free(text);
    return run->trace_count > 0 ? STATUS_OK : fail(run, STATUS_CORRUPT, "its metrics have no step");
}

/* The last validation where metrics.jsonl has it not. */
static void read_log(struct compare_run *run) {
    static const char mark[] = "result: val_loss=";
    size_t bytes = 0, count = run->validation_count;
    if (count > 0 && run->validations[count - 1].step >= run->steps) return;
    char *text = read_text(run, "log.txt", TEXT_MAX, &bytes);
    if (text == NULL) return;
    const char *found = strstr(text, mark);
    if (found != NULL) add_validation(run, run->steps, strtod(found + strlen(mark), NULL));
    free(text);
}

/* `name = value  # origin`, where the value may be quoted. */
static void take_option(struct compare_run *run, char *line) {
    char *equals = strstr(line, " = ");
    if (equals == NULL) return;
    *equals = '\0';
    char *value = equals + 3;
    if (*value == '"' || *value == '\'') {
        char *end = strchr(value + 1, *value);
        value++;
        if (end != NULL) *end = '\0';
    } else {
        value[strcspn(value, " \t#")] = '\0';
    }
    static const struct {
        const char *name;
        size_t offset;
    } numbers[] = {{"workers", offsetof(struct compare_run, workers)},
                   {"servers", offsetof(struct compare_run, servers)},
                   {"steps", offsetof(struct compare_run, steps)}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(line, numbers[i].name) == 0) {
            *(double *)((char *)run + numbers[i].offset) = strtod(value, NULL);
        }
    }
    static const char *const factors[] = {"batch", "seq-len", "accumulate"};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        if (strcmp(line, factors[i]) == 0) run->step_tokens *= strtod(value, NULL);
    }
    if (strcmp(line, "seed") == 0) run->seed = strtoll(value, NULL, 10);
    for (size_t i = 0; i < COMPARE_AXES; i++) {
        if (strcmp(line, compare_axis_names[i]) == 0) {
            (void)snprintf(run->axis[i], sizeof run->axis[i], "%s", value);
        }
    }
}

static enum status read_options(struct compare_run *run) {
    size_t bytes = 0;
    char *text = read_text(run, "options.conf", TEXT_MAX, &bytes);
    if (text == NULL) return fail(run, STATUS_IO, "no options.conf in its folder");
    run->workers = run->servers = run->steps = NAN;
    run->step_tokens = 1;
    for (size_t i = 0; i < COMPARE_AXES; i++) {
        (void)snprintf(run->axis[i], sizeof run->axis[i], "none");
    }
    char *rest = text, *line;
    while ((line = next_line(&rest)) != NULL) {
        take_option(run, line);
    }
    free(text);
    return STATUS_OK;
}

/* Values of one tensor of a safetensors header. */
static double tensor_values(const struct json_tree *tree, uint32_t tensor) {
    uint32_t shape = json_read_member(tree, tensor, "shape");
    double values = 1, size = NAN;
    if (shape == JSON_NONE || tree->nodes[shape].kind != JSON_ARRAY) return NAN;
    for (uint32_t i = shape + 1; i < tree->nodes[shape].next; i = tree->nodes[i].next) {
        if (!json_read_real(tree, i, &size)) return NAN;
        values *= size;
    }
    return values;
}

/* The header alone: the file may be large. */
static double header_values(FILE *file) {
    uint8_t length[8];
    uint64_t bytes = 0;
    double values = NAN;
    struct json_tree tree = {0};
    char why[128];
    if (fread(length, 1, sizeof length, file) != sizeof length) return NAN;
    for (size_t i = 0; i < sizeof length; i++) {
        bytes |= (uint64_t)length[i] << (8 * i);
    }
    if (bytes == 0 || bytes > HEADER_MAX) return NAN;
    char *text = memory_zeroed(bytes + 1, 1);
    if (fread(text, 1, bytes, file) == bytes &&
        json_read_parse(&tree, text, bytes, UINT32_C(1) << 22, why, sizeof why) == STATUS_OK &&
        tree.nodes[0].kind == JSON_OBJECT) {
        values = 0;
        for (uint32_t key = 1; key < tree.nodes[0].next; key = tree.nodes[key + 1].next) {
            if (strcmp(json_read_text(&tree, key), "__metadata__") != 0) {
                values += tensor_values(&tree, key + 1);
            }
        }
        json_read_free(&tree);
    }
    free(text);
    return values;
}

static void read_values(struct compare_run *run) {
    char path[4096];
    run->values = NAN;
    if (files_join(path, sizeof path, run->folder, "model.safetensors") != STATUS_OK) return;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return;
    run->values = header_values(file);
    (void)fclose(file);
}

enum status compare_read(struct compare_run *run) {
    compare_run_free(run);
    TRY(read_options(run));
    TRY(read_metrics(run));
    read_log(run);
    read_values(run);
    if (run->validation_count == 0) return fail(run, STATUS_CORRUPT, "it has no validation loss");
    return STATUS_OK;
}

void compare_run_free(struct compare_run *run) {
    free(run->trace);
    free(run->validations);
    run->trace = NULL;
    run->validations = NULL;
    run->trace_count = run->validation_count = 0;
}
