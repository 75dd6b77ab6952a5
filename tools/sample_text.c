/* sample_text.c - `rubato sample`: text from a trained model, of a run or from Hugging Face. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "kernels/threads.h"
#include "tools/subcommand.h"
#include "worker/hf_config.h"
#include "worker/hf_weights.h"
#include "worker/sample.h"
#include "worker/tokenizer_read.h"
#include "worker/train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: rubato sample --model FOLDER [--prompt TEXT] [--flag VALUE ...]\n"
    "\n"
    "Writes text that goes on after the prompt to standard output, prompt included. FOLDER holds\n"
    "config.json and model.safetensors: a run's folder, or a model in Hugging Face's layout. "
    "Tokens\n"
    "are bytes where the vocabulary is 256 or 257; else the tokenizer is --tokenizer, or the\n"
    "folder's tokenizer.json. The same flags give the same text.\n"
    "\n"
    "examples:\n"
    "  rubato sample --model runs/first --prompt 'The ' --tokens 200\n"
    "  rubato sample --model gpt2/ --prompt 'In a hole' --temperature 0.7 --top-k 40 --seed 3\n";

enum { ROLE = 1, BYTE_VALUES = 256 };

struct sample_options {
    char model[OPTION_TEXT_MAX], tokenizer[OPTION_TEXT_MAX], prompt[OPTION_TEXT_MAX];
    int64_t tokens, top_k, seed, threads;
    double temperature;
};

#define AT(field) offsetof(struct sample_options, field)
static const struct option table[] = {
    {"model", OPTION_TEXT, "", 0, 0, "folder", "folder with config.json and model.safetensors",
     false, ROLE, AT(model), NULL},
    {"tokenizer", OPTION_TEXT, "", 0, 0, "file",
     "tokenizer.json or FILE.tiktoken; empty: the folder's tokenizer.json, or bytes", false, ROLE,
     AT(tokenizer), NULL},
    {"prompt", OPTION_TEXT, "", 0, 0, "", "what the text starts with", false, ROLE, AT(prompt),
     NULL},
    {"tokens", OPTION_INT, "256", 0, 1e6, "tokens", "tokens to generate", false, ROLE, AT(tokens),
     NULL},
    {"temperature", OPTION_REAL, "0.8", 0, 100, "",
     "below 1 likely tokens come more often, above 1 less; 0: always the likeliest", false, ROLE,
     AT(temperature), NULL},
    {"top-k", OPTION_INT, "0", 0, 16777216, "tokens", "only the likeliest so many can come; 0: all",
     false, ROLE, AT(top_k), NULL},
    {"seed", OPTION_INT, "1", 0, 4294967295.0, "", "another seed, another text", false, ROLE,
     AT(seed), NULL},
    {"threads", OPTION_INT, "0", 0, 1024, "threads", "threads that compute; 0: all cores", false,
     ROLE, AT(threads), NULL},
};
enum { OPTION_COUNT = sizeof table / sizeof table[0] };

struct sampler {
    struct sample_options options;
    struct model_shape shape;
    struct plan plan;
    struct model *model;
    float *weights;              /* [plan.value_count] */
    struct tokenizer *tokenizer; /* NULL: a token is a byte */
    int32_t *tokens;             /* [prompt_count + options.tokens] */
    int64_t prompt_count;
};

/* --tokenizer, or what lies in the model's folder, or none: bytes. */
static enum status open_tokenizer(struct sampler *sampler) {
    char path[OPTION_TEXT_MAX + 32];
    const char *given = sampler->options.tokenizer;
    if (given[0] != '\0') {
        return tokenizer_open(&sampler->tokenizer, given, NULL);
    }
    if (sampler->shape.vocab <= BYTE_VALUES + 1) {
        return STATUS_OK;
    }
    TRY(files_join(path, sizeof path, sampler->options.model, "tokenizer.json"));
    if (access(path, R_OK) != 0) {
        log_error("a vocabulary of %" PRId64 " needs its tokenizer, and there is no %s: give "
                  "--tokenizer FILE",
                  sampler->shape.vocab, path);
        return STATUS_INVALID;
    }
    return tokenizer_open(&sampler->tokenizer, path, NULL);
}

/* ids [count], or the bytes of text where ids is NULL -> the prompt. */
static void set_prompt(struct sampler *sampler, const uint32_t *ids, const char *text,
                       size_t count) {
    ASSERT(ids != NULL || text != NULL);
    sampler->tokens = memory_zeroed(count + (size_t)sampler->options.tokens, sizeof(int32_t));
    for (size_t i = 0; i < count; i++) {
        sampler->tokens[i] = ids != NULL ? (int32_t)ids[i] : (unsigned char)text[i];
    }
    sampler->prompt_count = (int64_t)count;
}

/* An empty prompt stands for a beginning: what ends the document before, or a line. */
static enum status read_prompt(struct sampler *sampler) {
    struct tokenizer_encoder *encoder = NULL;
    const uint32_t *ids = NULL;
    size_t count = 0;
    const char *text = sampler->options.prompt[0] != '\0' ? sampler->options.prompt : "\n";
    if (sampler->tokenizer == NULL) {
        set_prompt(sampler, NULL, text, strlen(text));
        return STATUS_OK;
    }
    uint32_t eot = tokenizer_eot(sampler->tokenizer);
    if (sampler->options.prompt[0] == '\0' && eot != TOKENIZER_NONE) {
        set_prompt(sampler, &eot, NULL, 1);
        return STATUS_OK;
    }
    TRY(tokenizer_encoder_open(&encoder, sampler->tokenizer));
    enum status status =
        tokenizer_encode(encoder, (const uint8_t *)text, strlen(text), true, &ids, &count);
    if (status == STATUS_OK) {
        set_prompt(sampler, ids, NULL, count);
    }
    tokenizer_encoder_close(encoder);
    return status;
}

/* As long as the whole text, if the model can see that much: then no token is computed twice. */
static enum status open_model(struct sampler *sampler) {
    uint64_t count = 0;
    int64_t length = sampler->prompt_count + sampler->options.tokens;
    struct tensor *tensors = model_tensors(&sampler->shape, &count);
    enum status status = plan_build(&sampler->plan, tensors, count,
                                    &(struct plan_options){.shards = 1, .block_values = 1 << 18});
    free(tensors);
    TRY(status);
    sampler->weights = memory_zeroed((size_t)sampler->plan.value_count, sizeof(float));
    TRY(hf_weights_load(sampler->options.model, &sampler->plan, sampler->weights));
    struct model_options options = {
        .B = 1, .T = length < sampler->shape.positions ? length : sampler->shape.positions};
    return model_open(&sampler->model, &sampler->shape, &sampler->plan, &options);
}

/* A terminal must not act on what a model writes: control characters, also those of two bytes
 * (U+0080 to U+009F), are shown as dots there. Elsewhere the bytes are what they are. */
static void write_text(const uint8_t *text, size_t bytes) {
    bool terminal = isatty(STDOUT_FILENO) == 1;
    for (size_t i = 0; i < bytes; i++) {
        bool control = (text[i] < 0x20 && text[i] != '\n' && text[i] != '\t') || text[i] == 0x7f ||
                       (text[i] >= 0x80 && text[i] <= 0x9f && i > 0 && text[i - 1] == 0xc2);
        putchar(terminal && control ? '.' : text[i]);
    }
    putchar('\n');
}

static void print_tokens(const struct sampler *sampler) {
    size_t count = (size_t)(sampler->prompt_count + sampler->options.tokens);
    size_t bytes = 0;
    size_t capacity = sampler->tokenizer != NULL
                          ? tokenizer_decode_bound(sampler->tokenizer, sampler->tokens, count)
                          : count;
    uint8_t *text = memory_zeroed(capacity + 1, 1);
    if (sampler->tokenizer != NULL) {
        bytes = tokenizer_decode(sampler->tokenizer, sampler->tokens, count, text);
    }
    for (size_t i = 0; sampler->tokenizer == NULL && i < count; i++) {
        if (sampler->tokens[i] < BYTE_VALUES) { /* 256 ends a document */
            text[bytes++] = (uint8_t)sampler->tokens[i];
        }
    }
    write_text(text, bytes);
    free(text);
}

static enum status generate(struct sampler *sampler) {
    const struct sample_options *options = &sampler->options;
    TRY(hf_config_read(options->model, &sampler->shape));
    TRY(open_tokenizer(sampler));
    TRY(read_prompt(sampler));
    TRY(open_model(sampler));
    struct sample_request request = {.prompt = sampler->tokens,
                                     .prompt_count = sampler->prompt_count,
                                     .count = options->tokens,
                                     .temperature = (float)options->temperature,
                                     .seed = (uint64_t)options->seed,
                                     .top_k = options->top_k};
    int64_t start_ns = clock_now_ns();
    TRY(sample_generate(sampler->model, &sampler->shape, sampler->weights, &request,
                        sampler->tokens + sampler->prompt_count));
    double seconds = (double)(clock_now_ns() - start_ns) / (double)CLOCK_S;
    print_tokens(sampler);
    log_info("%" PRId64 " tokens in %.2f s, %.1f tokens/s", options->tokens, seconds,
             (double)options->tokens / seconds);
    return STATUS_OK;
}

static int sample_text_run(int argc, char **argv) {
    static struct sampler sampler;
    struct options options;
    options_init(&options, table, OPTION_COUNT, &sampler.options);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&options, ROLE, usage, stdout);
        return EXIT_CODE_OK;
    }
    if (options_parse(&options, ROLE, argc, argv) != STATUS_OK) {
        return EXIT_CODE_USAGE;
    }
    /* A job's variable (RUBATO_MODEL) is none of this command's. */
    if (options.origins[options_find(&options, "model")] != ORIGIN_FLAG) {
        log_error("sample: give --model FOLDER");
        return EXIT_CODE_USAGE;
    }
    threads_set(sampler.options.threads > 0 ? (int)sampler.options.threads : threads_available());
    enum status status = generate(&sampler);
    model_close(sampler.model);
    tokenizer_close(sampler.tokenizer);
    plan_free(&sampler.plan);
    free(sampler.weights);
    free(sampler.tokens);
    return status == STATUS_OK        ? EXIT_CODE_OK
           : status == STATUS_INVALID ? EXIT_CODE_USAGE
                                      : trainer_input_exit_code(status);
}

const struct subcommand sample_text_subcommand = {
    .name = "sample",
    .summary = "write text with a trained model",
    .run = sample_text_run,
};
