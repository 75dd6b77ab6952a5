#include "worker/finish.h"

#include "base/log.h"
#include "worker/safetensors.h"
#include "worker/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Adds the batch's targets, and the bytes of text that they are. */
static void count_text(const struct trainer *trainer, uint64_t *tokens, uint64_t *bytes) {
    size_t count = (size_t)(trainer->job->batch * trainer->job->seq_len);
    for (size_t i = 0; i < count; i++) {
        *tokens += trainer->targets[i] >= 0;
    }
    *bytes += vocabulary_bytes(&trainer->config.vocabulary, trainer->targets, count);
}

/* The run's, when they are installed. */
static const float *final_weights(const struct trainer *trainer) {
    return trainer->discipline.local ? trainer->local.anchor : trainer->weights;
}

double finish_validate(struct trainer *trainer) {
    const struct job *job = trainer->job;
    uint64_t batches = trainer->val.windows / (uint64_t)job->batch;
    double sum = 0;
    uint64_t bytes = 0;
    uint64_t tokens = 0;
    if (batches > (uint64_t)job->eval_batches) {
        batches = (uint64_t)job->eval_batches;
    }
    /* A validation part of less than a batch is read once and repeated to fill it. */
    batches = batches == 0 ? 1 : batches;
    node_set_weights(trainer->node, trainer->weights);
    for (uint64_t i = 0; i < batches; i++) {
        if (atomic_load(&trainer->config.session->over)) {
            return NAN;
        }
        data_stream_read(&trainer->val, i * (uint64_t)job->batch, job->batch, trainer->tokens,
                         trainer->targets);
        trainer_mask_padding(trainer);
        uint64_t before = tokens; /* batches may have differently many that count */
        count_text(trainer, &tokens, &bytes);
        struct model_batch batch = {.tokens = trainer->tokens,
                                    .targets = trainer->targets,
                                    .B = job->batch,
                                    .T = job->seq_len};
        sum += (double)node_forward(trainer->node, &batch, NULL) * (double)(tokens - before);
    }
    trainer->step.bytes_a_token = tokens > 0 ? (double)bytes / (double)tokens : 0;
    return tokens > 0 ? sum / (double)tokens : 0;
}

/* What generates the sample: the trained model, or where that is on a device, which does not
 * decode, a small one on the host. NULL, logged: there is no memory for it. */
static struct model *open_writer(const struct trainer *trainer) {
    struct model_options options;
    struct model *writer = NULL;
    if (node_host_model(trainer->node) != NULL) {
        return node_host_model(trainer->node);
    }
    trainer_model_options(trainer->job, &options);
    options.B = 1;
    options.training = false;
    options.type = options.type == COMPUTE_TF32 ? COMPUTE_F32 : options.type;
    return model_open(&writer, &trainer->shape, trainer->plan, &options) == STATUS_OK ? writer
                                                                                      : NULL;
}

/* tokens [prompt_count + request->count], the prompt among them. False: none could be made. */
static bool generate(struct trainer *trainer, const struct sample_request *request,
                     int32_t *tokens) {
    struct model *writer = open_writer(trainer);
    bool made =
        writer != NULL && sample_generate(writer, &trainer->shape, final_weights(trainer), request,
                                          tokens + request->prompt_count) == STATUS_OK;
    if (writer != node_host_model(trainer->node)) {
        model_close(writer);
    }
    return made;
}

/* Text that goes on after --prompt, or after a line's end. Where a token is no byte, its tokenizer
 * must be known. */
static size_t make_sample(struct trainer *trainer, char **sample) {
    const struct job *job = trainer->job;
    const struct vocabulary *vocabulary = &trainer->config.vocabulary;
    size_t count = (size_t)job->sample_tokens;
    const char *prompt = job->prompt[0] != '\0' ? job->prompt : "\n";
    int32_t *prompt_tokens = NULL;
    *sample = NULL;
    size_t prompt_count =
        count > 0 ? vocabulary_encode(vocabulary, prompt, strlen(prompt), &prompt_tokens) : 0;
    if (prompt_count == 0) {
        return 0;
    }
    int32_t *tokens = memory_zeroed(prompt_count + count, sizeof *tokens);
    memcpy(tokens, prompt_tokens, prompt_count * sizeof *tokens);
    free(prompt_tokens);
    struct sample_request request = {.prompt = tokens,
                                     .prompt_count = (int64_t)prompt_count,
                                     .count = (int64_t)count,
                                     .temperature = 0.8F,
                                     .seed = (uint64_t)job->seed,
                                     .stop = &trainer->config.session->over};
    size_t bytes = 0;
    if (generate(trainer, &request, tokens)) {
        bytes = vocabulary_decode(vocabulary, tokens, prompt_count + count, sample);
    }
    free(tokens);
    return bytes;
}

enum status finish_run(struct trainer *trainer) {
    struct report *report = trainer->config.report;
    char *sample = NULL;
    raw_weights_decode_all(&trainer->raw);
    if (trainer->config.keep_weights != NULL) {
        memcpy(trainer->config.keep_weights, final_weights(trainer),
               (size_t)trainer->plan->value_count * sizeof(float));
    }
    if (report == NULL) {
        return STATUS_OK;
    }
    TRY(report_take_over(report, trainer->config.options));
    trainer->step.val_loss = finish_validate(trainer);
    if (!isfinite(trainer->step.val_loss)) {
        TRY(node_status(trainer->node));
        return atomic_load(&trainer->config.session->over) ? STATUS_STALE : STATUS_CORRUPT;
    }
    TRY(safetensors_write(report->folder, trainer->plan, final_weights(trainer)));
    TRY(safetensors_write_config(report->folder, &trainer->shape));
    size_t bytes = make_sample(trainer, &sample);
    if (atomic_load(&trainer->config.session->over)) {
        free(sample);
        return STATUS_STALE;
    }
    report_result(report, &trainer->step, sample, bytes);
    free(sample);
    return STATUS_OK;
}
