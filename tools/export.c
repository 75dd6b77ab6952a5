/* export.c - `rubato export`: a run's model in another number type or in several files. */
#include "base/log.h"
#include "base/options.h"
#include "tools/subcommand.h"
#include "worker/safetensors_export.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SHARD_BYTES_MAX 1e15
#define ROLE            1u

struct export_options {
    char run[OPTION_TEXT_MAX], model[OPTION_TEXT_MAX], to[OPTION_TEXT_MAX];
    char dtype[OPTION_TEXT_MAX];
    int64_t shard_size;
};

static const char usage[] =
    "usage: rubato export --run FOLDER --to FOLDER [--dtype f32|bf16|f16] [--shard-size 2g]\n"
    "\n"
    "Writes the model of a run, or any folder in Hugging Face's layout (--model), to a new folder\n"
    "that transformers reads: model.safetensors, or several files with an index where the weights\n"
    "are more than --shard-size bytes, and config.json; tokenizer files come along.\n"
    "\n"
    "example:\n"
    "  rubato export --run runs/latest --to gpt2-mine --dtype bf16\n";

static enum dtype dtype_of(const char *text) {
    return strcmp(text, "f32") == 0    ? DTYPE_F32
           : strcmp(text, "bf16") == 0 ? DTYPE_BF16
           : strcmp(text, "f16") == 0  ? DTYPE_F16
                                       : DTYPE_U8;
}

static bool check_dtype(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "f32, bf16, f16");
    return dtype_is_weight(dtype_of(text));
}

#define AT(field) offsetof(struct export_options, field)

static const struct option table[] = {
    {"run", OPTION_TEXT, "", 0, 0, "folder", "folder of a run, with its model", false, ROLE,
     AT(run), NULL},
    {"model", OPTION_TEXT, "", 0, 0, "folder", "or a folder in Hugging Face's layout", false, ROLE,
     AT(model), NULL},
    {"to", OPTION_TEXT, "", 0, 0, "folder", "folder to write, without a model in it so far", false,
     ROLE, AT(to), NULL},
    {"dtype", OPTION_TEXT, "f32", 0, 0, "", "number type to write: f32, bf16 or f16", false, ROLE,
     AT(dtype), check_dtype},
    {"shard-size", OPTION_INT, "2g", 1, SHARD_BYTES_MAX, "bytes",
     "most bytes of weights in a file (a tensor is never split)", false, ROLE, AT(shard_size),
     NULL},
};
enum { OPTION_COUNT = sizeof table / sizeof table[0] };

/* A variable of a job (RUBATO_MODEL) is none of this command's. */
static const char *flag_text(const struct options *options, const char *name, const char *value) {
    int index = options_find(options, name);
    return index >= 0 && options->origins[index] == ORIGIN_FLAG ? value : "";
}

static int exit_code_of(enum status status) {
    switch (status) {
    case STATUS_IO:
        return EXIT_CODE_NO_INPUT;
    case STATUS_UNSUPPORTED:
        return EXIT_CODE_DATA;
    case STATUS_INVALID:
    case STATUS_DENIED:
        return EXIT_CODE_CREATE;
    default:
        return (int)status_exit_code(status);
    }
}

static int export_run(int argc, char **argv) {
    struct export_options config;
    struct options options;
    struct safetensors_exported done;
    options_init(&options, table, OPTION_COUNT, &config);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&options, ROLE, usage, stdout);
        return EXIT_CODE_OK;
    }
    if (options_parse(&options, ROLE, argc, argv) != STATUS_OK) return EXIT_CODE_USAGE;
    const char *run = flag_text(&options, "run", config.run);
    const char *model = flag_text(&options, "model", config.model);
    const char *to = flag_text(&options, "to", config.to);
    if ((*run == 0) == (*model == 0) || *to == 0) {
        log_error("export: give --to FOLDER and one of --run FOLDER, --model FOLDER");
        return EXIT_CODE_USAGE;
    }
    struct safetensors_export wanted = {.from = *run != 0 ? run : model,
                                        .to = to,
                                        .dtype = dtype_of(config.dtype),
                                        .shard_bytes = (uint64_t)config.shard_size};
    enum status status = safetensors_export(&wanted, &done);
    if (status != STATUS_OK) return exit_code_of(status);
    printf("wrote %s: %" PRIu64 " tensors, %" PRIu64 " values, %" PRIu64 " bytes of %s in %" PRIu64
           " file%s\n",
           to, done.tensors, done.values, done.bytes, config.dtype, done.files,
           done.files == 1 ? "" : "s");
    return EXIT_CODE_OK;
}

const struct subcommand export_subcommand = {
    .name = "export",
    .summary = "write a trained model for transformers, in f32, bf16 or f16",
    .run = export_run,
};
