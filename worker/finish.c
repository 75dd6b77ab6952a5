#include "worker/finish.h"

#include "base/log.h"
#include "worker/safetensors.h"
#include "worker/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double finish_validate(struct trainer *trainer) {
    const struct job *job = trainer->job;
    uint64_t batches = trainer->val.windows / (uint64_t)job->batch;
    double sum = 0;
    if (batches > (uint64_t)job->eval_batches) {
        batches = (uint64_t)job->eval_batches;
    }
    /* A validation part of less than a batch is read once and repeated to fill it. */
    batches = batches == 0 ? 1 : batches;
    for (uint64_t i = 0; i < batches; i++) {
        data_stream_read(&trainer->val, i * (uint64_t)job->batch, job->batch, trainer->tokens,
                         trainer->targets);
        sum += (double)model_forward(trainer->model, trainer->weights, trainer->tokens,
                                     trainer->targets, job->batch, job->seq_len);
    }
    return sum / (double)batches;
}

/* Text that goes on after --prompt, or after the validation data's first line. Bytes only: other
 * vocabularies need their tokenizer. */
static size_t make_sample(struct trainer *trainer, char **sample) {
    const struct job *job = trainer->job;
    size_t count = (size_t)job->sample_tokens;
    size_t prompt_count = strlen(job->prompt);
    const char *prompt = prompt_count > 0 ? job->prompt : "\n";
    *sample = NULL;
    if (trainer->config.data->format != DATA_BYTES || count == 0) {
        return 0;
    }
    prompt_count = prompt_count > 0 ? prompt_count : 1;
    int32_t *tokens = memory_zeroed(prompt_count + count, sizeof *tokens);
    char *text = memory_zeroed(prompt_count + count + 1, 1);
    for (size_t i = 0; i < prompt_count; i++) {
        tokens[i] = (unsigned char)prompt[i];
    }
    struct sample_request request = {.prompt = tokens,
                                     .prompt_count = (int64_t)prompt_count,
                                     .count = (int64_t)count,
                                     .temperature = 0.8F,
                                     .seed = (uint64_t)job->seed};
    size_t bytes = 0;
    if (sample_generate(trainer->model, &trainer->shape, trainer->weights, &request,
                        tokens + prompt_count) == STATUS_OK) {
        bytes = prompt_count + count;
        for (size_t i = 0; i < bytes; i++) {
            text[i] = (char)tokens[i];
        }
    }
    free(tokens);
    *sample = text;
    return bytes;
}

enum status finish_run(struct trainer *trainer) {
    struct report *report = trainer->config.report;
    char *sample = NULL;
    if (trainer->config.keep_weights != NULL) {
        memcpy(trainer->config.keep_weights, trainer->weights,
               (size_t)trainer->plan->value_count * sizeof(float));
    }
    if (report == NULL) {
        return STATUS_OK;
    }
    trainer->step.val_loss = finish_validate(trainer);
    TRY(safetensors_write(report->folder, trainer->plan, trainer->weights));
    TRY(safetensors_write_config(report->folder, &trainer->shape));
    size_t bytes = make_sample(trainer, &sample);
    report_result(report, &trainer->step, sample, bytes);
    free(sample);
    return STATUS_OK;
}
