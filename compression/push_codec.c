#include "compression/push_codec.h"

#include "base/assert.h"
#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "compression/decoder.h"
#include "compression/encoder_device.h"
#include "proto/discipline.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPECS_MAX = 32, NO_SPEC = UINT8_MAX, SMALL_BLOCK = 4096, FILE_BYTES_MAX = 1 << 20 };

/* The specs in use, the first of them --push's, and for a file its lines. */
struct policy {
    struct codec_spec specs[SPECS_MAX];
    size_t spec_count;
    char *text;             /* the file's, cut into patterns */
    const char **patterns;  /* [pattern_count] in text */
    uint8_t *pattern_specs; /* [pattern_count] */
    size_t pattern_count;
};

struct push_codec {
    const struct plan *plan;
    struct encoder *encoders[SPECS_MAX]; /* NULL: the spec has no blocks */
    /* Of each device: NULL if it has no blocks of the spec, or the host encodes. */
    struct encoder_device *on_device[SPECS_MAX][DEVICE_NAMES_MAX];
    const uint8_t *owners; /* [block_count] devices, where they encode */
    uint8_t *spec_of;      /* [block_count] NO_SPEC: frozen, or not here */
    size_t *index_of;      /* [block_count] in its encoder */
    void *scratch;
    size_t memory;
};

/* ---- the policy ---- */

static bool same_spec(const struct codec_spec *a, const struct codec_spec *b) {
    char texts[2][CODEC_TEXT_MAX];
    codec_print(a, texts[0]);
    codec_print(b, texts[1]);
    return strcmp(texts[0], texts[1]) == 0;
}

/* The place of the text's spec among those in use; NO_SPEC, with the reason in why, if the text is
 * wrong or they are too many. */
static uint8_t add_spec(struct policy *policy, const struct job *job, const char *text, char *why,
                        size_t why_bytes) {
    struct codec_spec spec;
    if (!codec_parse(text, &spec, why, why_bytes)) return NO_SPEC;
    ASSERT(codec_residual_find(job->residual, &spec.residual));
    for (size_t i = 0; i < policy->spec_count; i++) {
        if (same_spec(&policy->specs[i], &spec)) return (uint8_t)i;
    }
    if (policy->spec_count == SPECS_MAX) {
        (void)snprintf(why, why_bytes, "at most %d different codecs", SPECS_MAX);
        return NO_SPEC;
    }
    policy->specs[policy->spec_count] = spec;
    return (uint8_t)policy->spec_count++;
}

/* One line of the file, which is cut in two. */
static enum status take_line(struct policy *policy, const struct job *job, char *line,
                             size_t number) {
    char why[256] = "a pattern and a codec";
    uint8_t spec = NO_SPEC;
    char *rest = NULL;
    line[strcspn(line, "#\r")] = '\0';
    const char *pattern = strtok_r(line, " \t", &rest);
    if (pattern == NULL) return STATUS_OK;
    const char *codec = strtok_r(NULL, " \t", &rest);
    if (codec != NULL && strtok_r(NULL, " \t", &rest) == NULL)
        spec = add_spec(policy, job, codec, why, sizeof why);
    if (spec == NO_SPEC) {
        log_error("--push-policy: line %zu of %s: wanted is %s", number, job->push_policy, why);
        return STATUS_INVALID;
    }
    policy->patterns[policy->pattern_count] = pattern;
    policy->pattern_specs[policy->pattern_count++] = spec;
    return STATUS_OK;
}

static enum status read_file(struct policy *policy, const struct job *job) {
    size_t bytes = 0;
    size_t lines = 1;
    TRY(files_read(job->push_policy, FILE_BYTES_MAX, &policy->text, &bytes));
    for (size_t i = 0; i < bytes; i++)
        lines += policy->text[i] == '\n';
    policy->patterns = memory_zeroed(lines, sizeof *policy->patterns);
    policy->pattern_specs = memory_zeroed(lines, sizeof *policy->pattern_specs);
    size_t number = 1;
    for (char *line = policy->text; line != NULL; number++) {
        char *next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        TRY(take_line(policy, job, line, number));
        line = next;
    }
    return STATUS_OK;
}

static void policy_free(struct policy *policy) {
    free(policy->text);
    free(policy->patterns);
    free(policy->pattern_specs);
}

/* The place of --push's spec with both factors in the payload. */
static uint8_t own_factors(struct policy *policy, const struct job *job) {
    struct codec_spec spec = policy->specs[0];
    char text[CODEC_TEXT_MAX];
    char why[256];
    spec.codec = CODEC_POWERSGD;
    codec_print(&spec, text);
    return add_spec(policy, job, text, why, sizeof why);
}

static uint8_t choose(struct policy *policy, const struct job *job, const struct plan *plan,
                      const struct plan_block *block) {
    const struct tensor *tensor = &plan->tensors[plan->pack_order[block->first_tensor]];
    char why[256];
    if (block->fragment == PLAN_FROZEN) return NO_SPEC;
    for (size_t i = 0; i < policy->pattern_count; i++) {
        if (fnmatch(policy->patterns[i], tensor->name, 0) == 0) return policy->pattern_specs[i];
    }
    /* A product with a factor that others made has no rows of zeros. */
    if (policy->specs[0].codec == CODEC_POWERSGD_SHARED && tensor->embedding)
        return own_factors(policy, job);
    if (strcmp(job->push_policy, "auto") != 0 || !codec_is_coarse(&policy->specs[0])) return 0;
    if (tensor->dims > 1 && block->count >= SMALL_BLOCK) return 0;
    uint8_t spec = add_spec(policy, job, "bf16", why, sizeof why);
    ASSERT(spec != NO_SPEC);
    return spec;
}

/* ---- the encoders ---- */

static void open_encoder(struct push_codec *push_codec, const struct encoder_config *base,
                         uint8_t spec) {
    const struct plan *plan = push_codec->plan;
    struct encoder_config config = *base;
    struct encoder_block *blocks = memory_zeroed((size_t)plan->block_count, sizeof *blocks);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        if (push_codec->spec_of[id] != spec) continue;
        push_codec->index_of[id] = config.block_count;
        blocks[config.block_count++] = (struct encoder_block){
            .id = id, .rows = (size_t)block->rows, .cols = (size_t)block->cols};
    }
    config.blocks = blocks;
    /* Its means are factors, which change sides: nothing that was held back would fit. */
    if (config.averages && config.spec.codec == CODEC_POWERSGD_SHARED)
        config.spec.feedback = FEEDBACK_NONE;
    if (config.block_count > 0) {
        push_codec->encoders[spec] = encoder_open(&config);
        push_codec->memory += encoder_state_bytes(push_codec->encoders[spec]);
    }
    free(blocks);
}

static uint64_t or_usual(int64_t given, uint64_t usual) {
    return given < 0 ? usual : (uint64_t)given;
}

/* Pushes that warming codecs send dense. */
static uint64_t dense_of(const struct job *job, uint64_t pushes) {
    int64_t gradients = job_momentum_after(job);
    return gradients > 0 ? (uint64_t)gradients
                         : or_usual(job->dense_warmup, encoder_default_dense(pushes));
}

static void open_encoders(struct push_codec *push_codec, const struct job *job, uint32_t rank,
                          bool averages, const struct policy *policy) {
    struct discipline discipline;
    char why[256];
    size_t scratch = 0;
    ASSERT(job_discipline(job, &discipline, why, sizeof why) == STATUS_OK);
    uint64_t pushes =
        (uint64_t)discipline_reports(&discipline, job->steps) / push_codec->plan->fragment_count;
    struct encoder_config config = {
        .seed = (uint64_t)job->seed,
        .lane = rank,
        .averages = averages,
        .dense_steps = dense_of(job, pushes),
        .ramp_steps = or_usual(job->density_schedule, encoder_default_ramp(pushes))};
    for (size_t i = 0; i < policy->spec_count; i++) {
        config.spec = policy->specs[i];
        open_encoder(push_codec, &config, (uint8_t)i);
        if (push_codec->encoders[i] == NULL) continue;
        size_t wanted = encoder_scratch_bytes(push_codec->encoders[i]);
        scratch = wanted > scratch ? wanted : scratch;
    }
    push_codec->scratch = memory_zeroed(scratch + 1, 1);
    push_codec->memory += scratch;
}

static bool is_here(const struct plan_block *block, uint64_t shard) {
    return shard == PUSH_CODEC_ALL || block->shard == shard;
}

enum status push_codec_open(const struct job *job, const struct plan *plan, uint32_t rank,
                            uint64_t shard, struct push_codec **push_codec) {
    struct policy policy = {0};
    char why[256];
    ASSERT(add_spec(&policy, job, job->push, why, sizeof why) == 0); // job_table checked it
    bool file = strcmp(job->push_policy, "auto") != 0 && strcmp(job->push_policy, "all") != 0;
    enum status status = file ? read_file(&policy, job) : STATUS_OK;
    if (status == STATUS_OK) {
        struct push_codec *made = memory_zeroed(1, sizeof *made);
        made->plan = plan;
        made->spec_of = memory_zeroed((size_t)plan->block_count, sizeof *made->spec_of);
        made->index_of = memory_zeroed((size_t)plan->block_count, sizeof *made->index_of);
        for (uint64_t id = 0; id < plan->block_count; id++) {
            const struct plan_block *block = &plan->blocks[id];
            made->spec_of[id] = is_here(block, shard) ? choose(&policy, job, plan, block) : NO_SPEC;
        }
        open_encoders(made, job, rank, shard != PUSH_CODEC_ALL, &policy);
        *push_codec = made;
    }
    policy_free(&policy);
    return status;
}

void push_codec_close(struct push_codec *push_codec) {
    if (push_codec == NULL) return;
    push_codec_leave_devices(push_codec);
    for (size_t i = 0; i < SPECS_MAX; i++)
        encoder_close(push_codec->encoders[i]);
    free(push_codec->spec_of);
    free(push_codec->index_of);
    free(push_codec->scratch);
    free(push_codec);
}

static struct encoder *encoder_of(const struct push_codec *push_codec, uint64_t block) {
    ASSERT_OP(block, <, push_codec->plan->block_count);
    uint8_t spec = push_codec->spec_of[block];
    return spec == NO_SPEC ? NULL : push_codec->encoders[spec];
}

size_t push_codec_bound(const struct push_codec *push_codec, uint64_t block) {
    const struct encoder *encoder = encoder_of(push_codec, block);
    return encoder == NULL ? 0 : encoder_bound(encoder, push_codec->index_of[block]);
}

size_t push_codec_usual_bytes(const struct push_codec *push_codec, uint64_t block) {
    const struct encoder *encoder = encoder_of(push_codec, block);
    return encoder == NULL ? 0 : encoder_usual_bytes(encoder, push_codec->index_of[block]);
}

size_t push_codec_memory(const struct push_codec *push_codec) {
    return push_codec->memory;
}

/* A fragment's blocks are in every so-manieth report. */
static uint64_t step_of(const struct push_codec *push_codec, uint64_t seq) {
    return (seq - 1) / push_codec->plan->fragment_count;
}

void push_codec_encode(struct push_codec *push_codec, uint64_t block, uint64_t seq,
                       const float *values, uint8_t *wire, struct encoder_result *result) {
    struct encoder *encoder = encoder_of(push_codec, block);
    ASSERT(encoder != NULL);
    encoder_encode(encoder, push_codec->index_of[block], step_of(push_codec, seq), values, 1.0F,
                   wire, push_codec->scratch, result);
    ASSERT_OP(result->bytes, <=, decoder_payload_max(push_codec->plan->blocks[block].count));
}

/* The blocks of the spec's encoder that a device owns -> new memory [encoder_block_count], free()
 * it. NULL: none. */
static bool *find_owned(const struct push_codec *push_codec, size_t spec, int number,
                        const uint8_t *owners) {
    const struct encoder *encoder = push_codec->encoders[spec];
    bool *owns = NULL;
    for (uint64_t id = 0; id < push_codec->plan->block_count; id++) {
        if (push_codec->spec_of[id] != spec || owners[id] != number) continue;
        if (owns == NULL) owns = memory_zeroed(encoder_block_count(encoder), sizeof *owns);
        owns[push_codec->index_of[id]] = true;
    }
    return owns;
}

/* The spec's encoder on the device, for the blocks that it owns, if there are any. */
static enum status open_on_device(struct push_codec *push_codec, size_t spec, struct device *device,
                                  int number, const uint8_t *owners) {
    bool *owns = find_owned(push_codec, spec, number, owners);
    enum status status = STATUS_OK;
    if (owns != NULL)
        status = encoder_device_open(&push_codec->on_device[spec][number], device,
                                     push_codec->encoders[spec], owns);
    free(owns);
    return status;
}

uint64_t push_codec_device_bytes(const struct push_codec *push_codec, const struct device *device,
                                 int number, const uint8_t *owners) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < SPECS_MAX; i++) {
        bool *owns =
            push_codec->encoders[i] != NULL ? find_owned(push_codec, i, number, owners) : NULL;
        if (owns != NULL) bytes += encoder_device_bytes(device, push_codec->encoders[i], owns);
        free(owns);
    }
    return bytes;
}

enum status push_codec_use_devices(struct push_codec *push_codec, struct device *const *devices,
                                   int count, const uint8_t *owners) {
    enum status status = STATUS_OK;
    ASSERT(count >= 1 && count <= DEVICE_NAMES_MAX);
    for (size_t i = 0; i < SPECS_MAX; i++) {
        for (int k = 0; k < count && status == STATUS_OK && push_codec->encoders[i] != NULL; k++)
            status = open_on_device(push_codec, i, devices[k], k, owners);
    }
    push_codec->owners = owners;
    if (status != STATUS_OK) push_codec_leave_devices(push_codec);
    return status;
}

void push_codec_leave_devices(struct push_codec *push_codec) {
    for (size_t i = 0; i < SPECS_MAX; i++) {
        for (size_t k = 0; k < DEVICE_NAMES_MAX; k++) {
            encoder_device_close(push_codec->on_device[i][k]);
            push_codec->on_device[i][k] = NULL;
        }
    }
    push_codec->owners = NULL;
}

static struct encoder_device *device_of(const struct push_codec *push_codec, uint64_t block) {
    ASSERT_OP(block, <, push_codec->plan->block_count);
    uint8_t spec = push_codec->spec_of[block];
    ASSERT(spec != NO_SPEC && push_codec->owners != NULL);
    return push_codec->on_device[spec][push_codec->owners[block]];
}

void push_codec_queue(struct push_codec *push_codec, uint64_t block, uint64_t seq,
                      const float *values, uint8_t *wire, bool wire_on_device) {
    encoder_device_encode(device_of(push_codec, block), push_codec->index_of[block],
                          step_of(push_codec, seq), values, wire, wire_on_device);
}

void push_codec_result(const struct push_codec *push_codec, uint64_t block,
                       struct encoder_result *result) {
    encoder_device_result(device_of(push_codec, block), push_codec->index_of[block],
                          push_codec->scratch, result);
}

bool push_codec_packs(const struct push_codec *push_codec) {
    for (size_t i = 0; i < SPECS_MAX; i++) {
        const struct encoder *encoder = push_codec->encoders[i];
        if (encoder != NULL && encoder_spec(encoder)->zstd) return true;
    }
    return false;
}

void push_codec_expand(struct push_codec *push_codec, uint64_t block, uint8_t codec,
                       float *values) {
    struct encoder *encoder = encoder_of(push_codec, block);
    ASSERT(encoder != NULL);
    if (codec == CODEC_POWERSGD_SHARED) {
        encoder_expand(encoder, push_codec->index_of[block], values, push_codec->scratch);
    }
}
