/* prepare.c - `rubato prepare`: text or JSONL, also compressed, into llm.c shards of tokens. */
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "tools/prepare_batch.h"
#include "tools/subcommand.h"
#include "worker/content.h"
#include "worker/jsonl.h"
#include "worker/tokenizer_read.h"
#include "worker/utf8.h"

#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES_VOCAB   256
#define SMALL_VOCAB   65536 /* up to here a token is a uint16 */
#define PIECE_BYTES   ((size_t)256 << 10)
#define LIVE_EVERY_NS (CLOCK_S / 5)
#define SLOW_EVERY_NS (10 * CLOCK_S)

static const char usage[] =
    "usage: rubato prepare --input FILE... --out FOLDER/|PREFIX --vocab VOCABULARY [options]\n"
    "\n"
    "Turns texts into tokens: llm.c .bin files that every trainer of this kind reads. Inputs are\n"
    "text files (a document each) or JSONL (a document a line, its \"text\"), each also as .zst;\n"
    "names may be patterns in quotes. The vocabulary is one of\n"
    "  bytes             a token a byte, 0 to 255\n"
    "  tokenizer.json    Hugging Face's, byte-level BPE\n"
    "  FILE.tiktoken     tiktoken's ranks; published ones bring their pattern, others need\n"
    "                    --pattern\n"
    "Writes FOLDER/train_000000.bin, ... and val_000000.bin, ... (or PREFIX_train_..., if --out\n"
    "names no folder) with tokens of 16 bits, or of 32 if the vocabulary has more than 65536; and\n"
    "meta.json beside them. Special tokens in the texts are encoded as the letters they are.\n"
    "\n"
    "examples:\n"
    "  rubato prepare --input corpus.txt --out data/bytes/ --vocab bytes\n"
    "  rubato prepare --input 'web/*.jsonl.zst' --out data/web/ --vocab gpt2/tokenizer.json \\\n"
    "      --append-eot --val-part 0.005\n"
    "  rubato prepare --input a.txt b.txt --out data/books --vocab mine.tiktoken --pattern cl100k\n"
    "\n"
    "and then, for instance:\n"
    "  rubato launch --workers 2 --data 'data/web/train_*.bin' --val-data 'data/web/val_*.bin' \\\n"
    "      --vocab 50257 --tokenizer gpt2/tokenizer.json\n"
    "\n"
    "  --input FILE...   what to read; may be given more than once\n";

struct settings {
    char out[OPTION_TEXT_MAX], vocab[OPTION_TEXT_MAX], pattern[OPTION_TEXT_MAX];
    int64_t shard_tokens, threads;
    double val_part;
    bool append_eot;
};

#define AT(field) offsetof(struct settings, field)

static const struct option prepare_table[] = {
    {"out", OPTION_TEXT, "", 0, 0, "",
     "where to write: a folder (made if it ends in /), or the beginning of the files' names", false,
     1, AT(out), NULL},
    {"vocab", OPTION_TEXT, "", 0, 0, "", "bytes, a tokenizer.json, or a .tiktoken file", false, 1,
     AT(vocab), NULL},
    {"pattern", OPTION_TEXT, "", 0, 0, "",
     "how a .tiktoken vocabulary splits text: gpt2, cl100k, llama3, o200k; empty: as published",
     false, 1, AT(pattern), NULL},
    {"shard-tokens", OPTION_INT, "100m", 1, (double)TOKEN_SHARD_MAX, "tokens", "tokens in one file",
     false, 1, AT(shard_tokens), NULL},
    {"val-part", OPTION_REAL, "0.01", 0, 0.9, "",
     "part of each input, at its end, that is kept for validation", false, 1, AT(val_part), NULL},
    {"append-eot", OPTION_FLAG, "no", 0, 0, "",
     "write the vocabulary's end-of-text token after each document (for bytes: 256)", false, 1,
     AT(append_eot), NULL},
    {"threads", OPTION_INT, "0", 0, 1024, "threads", "threads that encode; 0: all cores", false, 1,
     AT(threads), NULL},
};

struct prepare {
    struct settings settings;
    struct options options;
    struct content_list inputs;
    struct tokenizer *tokenizer; /* NULL: bytes */
    int64_t vocab;
    uint32_t eot;
    char prefix[OPTION_TEXT_MAX + 8]; /* of the files' names */
    struct token_shards train, held;
    struct prepare_batch batch;
    uint64_t disk_bytes, disk_done; /* of all inputs, and of those that are finished */
    uint64_t disk_now;              /* of the one under way */
    int64_t started_ns, printed_ns;
    bool terminal, line_open;
};

/* ---- the command line ---- */

/* Moves the words after each --input out of argv; joins them with commas -> new memory. */
static char *take_inputs(int *argc, char **argv) {
    static const char flag[] = "--input";
    const size_t flag_bytes = sizeof flag - 1;
    size_t bytes = 1;
    for (int i = 1; i < *argc; i++)
        bytes += strlen(argv[i]) + 1;
    char *inputs = memory_zeroed(bytes, 1);
    size_t used = 0;
    int kept = 1;
    bool taking = false;
    for (int i = 1; i < *argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, flag) == 0) {
            taking = true;
            continue;
        }
        bool joined = strncmp(word, flag, flag_bytes) == 0 && word[flag_bytes] == '=';
        if (word[0] == '-' && !joined) taking = false;
        if (joined || taking) {
            const char *name = joined ? word + flag_bytes + 1 : word;
            if (used > 0) inputs[used++] = ',';
            memcpy(inputs + used, name, strlen(name) + 1);
            used += strlen(name);
            taking = true;
        } else {
            argv[kept++] = argv[i];
        }
    }
    *argc = kept;
    argv[kept] = NULL;
    return inputs;
}

static int parse(struct prepare *prepare, int argc, char **argv) {
    struct settings *settings = &prepare->settings;
    char *inputs = take_inputs(&argc, argv);
    int code = EXIT_CODE_USAGE;
    if (options_parse(&prepare->options, 1, argc, argv) != STATUS_OK) {
        code = EXIT_CODE_USAGE;
    } else if (inputs[0] == '\0') {
        log_error("--input is missing: give the files to read");
    } else if (settings->out[0] == '\0') {
        log_error("--out is missing: give a folder, or the beginning of the files' names");
    } else if (settings->vocab[0] == '\0') {
        log_error("--vocab is missing: bytes, a tokenizer.json, or a .tiktoken file");
    } else {
        code = content_list_open(&prepare->inputs, inputs) == STATUS_OK ? EXIT_CODE_OK
                                                                        : EXIT_CODE_NO_INPUT;
    }
    free(inputs);
    return code;
}

static int open_vocab(struct prepare *prepare) {
    const struct settings *settings = &prepare->settings;
    prepare->eot = TOKENIZER_NONE;
    if (strcmp(settings->vocab, "bytes") == 0) {
        if (settings->pattern[0] != '\0') {
            log_error("--pattern %s: bytes are not split", settings->pattern);
            return EXIT_CODE_USAGE;
        }
        prepare->vocab = BYTES_VOCAB + (settings->append_eot ? 1 : 0);
        if (settings->append_eot) prepare->eot = BYTES_VOCAB;
        return EXIT_CODE_OK;
    }
    enum status status = tokenizer_open(&prepare->tokenizer, settings->vocab, settings->pattern);
    if (status == STATUS_IO) return EXIT_CODE_NO_INPUT;
    if (status == STATUS_INVALID) return EXIT_CODE_USAGE;
    if (status == STATUS_UNSUPPORTED) return EXIT_CODE_DATA;
    if (status != STATUS_OK) return (int)status_exit_code(status);
    prepare->vocab = tokenizer_vocab(prepare->tokenizer);
    prepare->eot = tokenizer_eot(prepare->tokenizer);
    if (settings->append_eot && prepare->eot == TOKENIZER_NONE) {
        log_error("--append-eot: %s has no end-of-text token", settings->vocab);
        return EXIT_CODE_USAGE;
    }
    return EXIT_CODE_OK;
}

/* Old shards beside new ones would be read as one data set. */
static bool none_exist(const char *prefix, const char *kind) {
    char pattern[OPTION_TEXT_MAX + 64];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s%s_[0-9]*.bin", prefix, kind);
    bool none = glob(pattern, 0, NULL, &found) == GLOB_NOMATCH;
    if (!none && found.gl_pathc > 0)
        log_error("--out: %s exists; remove it, or write elsewhere", found.gl_pathv[0]);
    globfree(&found);
    return none;
}

static int open_output(struct prepare *prepare) {
    const char *out = prepare->settings.out;
    struct stat about;
    bool slash = out[strlen(out) - 1] == '/';
    bool folder = slash || (stat(out, &about) == 0 && S_ISDIR(about.st_mode));
    snprintf(prepare->prefix, sizeof prepare->prefix, "%s%s", out, slash ? "" : folder ? "/" : "_");
    if (folder && files_make_folder(out) != STATUS_OK) return EXIT_CODE_CREATE;
    if (!none_exist(prepare->prefix, "train") || !none_exist(prepare->prefix, "val"))
        return EXIT_CODE_CREATE;
    char path[OPTION_TEXT_MAX + 64];
    bool wide = prepare->vocab > SMALL_VOCAB;
    uint64_t each = (uint64_t)prepare->settings.shard_tokens;
    snprintf(path, sizeof path, "%strain", prepare->prefix);
    token_shards_init(&prepare->train, path, wide, each);
    snprintf(path, sizeof path, "%sval", prepare->prefix);
    token_shards_init(&prepare->held, path, wide, each);
    return EXIT_CODE_OK;
}

/* ---- the work ---- */

/* `part` of the input under way is done. */
static void show_progress(struct prepare *prepare, double part) {
    int64_t now_ns = clock_now_ns();
    int64_t every = prepare->terminal ? LIVE_EVERY_NS : SLOW_EVERY_NS;
    if (now_ns - prepare->printed_ns < every) return;
    double done = (double)prepare->disk_done + part * (double)prepare->disk_now;
    double all = prepare->disk_bytes > 0 ? done / (double)prepare->disk_bytes : 1;
    double seconds = (double)(now_ns - prepare->started_ns) / (double)CLOCK_S;
    int64_t left = all > 0 ? (int64_t)(seconds * (1 - all) / all + 0.5) : 0;
    fprintf(stderr,
            "%sprepare %.0f%% | %" PRIu64 " documents | %.1f MB | %.1fM tokens | %.1f MB/s | "
            "eta %" PRId64 ":%02" PRId64 "%s",
            prepare->terminal ? "\r" : "", 100 * all, prepare->batch.documents,
            (double)prepare->batch.text_bytes / 1e6,
            (double)(prepare->train.tokens + prepare->held.tokens) / 1e6,
            (double)prepare->batch.text_bytes / 1e6 / seconds, left / 60, left % 60,
            prepare->terminal ? "\033[K" : "\n");
    fflush(stderr);
    prepare->line_open = prepare->terminal;
    prepare->printed_ns = now_ns;
}

/* A text is cut where that changes no token, so that threads share it, and where validation
 * begins. */
static enum status add_text(struct prepare *prepare, const uint8_t *text, uint64_t bytes,
                            uint64_t held_from, bool whole_file) {
    uint64_t at = 0;
    do {
        uint64_t left = bytes - at, want = PIECE_BYTES;
        bool held = at >= held_from;
        if (!held && held_from - at < want) want = held_from - at;
        size_t window = left < TOKENIZER_TEXT_MAX ? (size_t)left : TOKENIZER_TEXT_MAX;
        size_t piece = window;
        if (want < window)
            piece = prepare->tokenizer == NULL ? (size_t)want
                                               : tokenizer_cut(text + at, window, (size_t)want);
        struct prepare_piece added = {.text = text + at,
                                      .bytes = piece,
                                      .starts = at == 0,
                                      .ends = at + piece == bytes,
                                      .held = held};
        TRY(prepare_batch_add(&prepare->batch, &added));
        at += piece;
        if (whole_file) show_progress(prepare, (double)at / (double)bytes);
    } while (at < bytes);
    return STATUS_OK;
}

static enum status add_documents(struct prepare *prepare, const struct content *content,
                                 uint64_t held_from) {
    struct jsonl jsonl;
    uint8_t *text = NULL;
    uint64_t bytes = 0;
    jsonl_init(&jsonl, content->bytes, content->count, content->name);
    for (;;) {
        bool held = jsonl.at >= held_from;
        enum status status = jsonl_next(&jsonl, &text, &bytes);
        if (status == STATUS_AGAIN) return STATUS_OK;
        TRY(status);
        TRY(add_text(prepare, text, bytes, held ? 0 : UINT64_MAX, false));
        show_progress(prepare, (double)jsonl.at / (double)content->count);
    }
}

/* An exit code. */
static int read_input(struct prepare *prepare, const char *path) {
    struct content content;
    enum status status = content_open(&content, path);
    if (status != STATUS_OK)
        return status == STATUS_IO ? EXIT_CODE_NO_INPUT : (int)status_exit_code(status);
    double part = prepare->settings.val_part;
    uint64_t held_from = part > 0 ? (uint64_t)((double)content.count * (1 - part)) : UINT64_MAX;
    if (content.jsonl) {
        status = add_documents(prepare, &content, held_from);
    } else {
        size_t valid =
            prepare->tokenizer != NULL ? utf8_valid(content.bytes, content.count) : content.count;
        if (valid < content.count)
            log_warn("%s: not UTF-8 at byte %zu; such bytes become tokens of their own",
                     content.name, valid);
        status = add_text(prepare, content.bytes, content.count, held_from, true);
    }
    if (status == STATUS_OK) status = prepare_batch_flush(&prepare->batch);
    content_close(&content);
    return (int)status_exit_code(status);
}

static int read_all(struct prepare *prepare) {
    const struct content_list *inputs = &prepare->inputs;
    struct stat about;
    for (uint64_t i = 0; i < inputs->count; i++)
        prepare->disk_bytes += stat(inputs->paths[i], &about) == 0 ? (uint64_t)about.st_size : 0;
    prepare->started_ns = prepare->printed_ns = clock_now_ns();
    prepare->terminal = isatty(STDERR_FILENO) == 1;
    for (uint64_t i = 0; i < inputs->count; i++) {
        prepare->disk_now = stat(inputs->paths[i], &about) == 0 ? (uint64_t)about.st_size : 0;
        int code = read_input(prepare, inputs->paths[i]);
        if (code != EXIT_CODE_OK) return code;
        prepare->disk_done += prepare->disk_now;
    }
    if (token_shards_finish(&prepare->train) != STATUS_OK ||
        token_shards_finish(&prepare->held) != STATUS_OK)
        return EXIT_CODE_IO;
    return EXIT_CODE_OK;
}

/* ---- what is left ---- */

static enum status write_meta(const struct prepare *prepare) {
    char text[8192], digest[24], path[OPTION_TEXT_MAX + 64];
    const struct tokenizer *tokenizer = prepare->tokenizer;
    size_t bytes = 0;
    struct json json;
    json_begin(&json, text, sizeof text);
    json_text(&json, "schema", "rubato.tokens/1");
    json_int(&json, "vocab_size", prepare->vocab);
    json_text(&json, "tokenizer", prepare->settings.vocab);
    if (tokenizer != NULL) {
        snprintf(digest, sizeof digest, "%016" PRIx64, tokenizer_digest(tokenizer));
        json_text(&json, "tokenizer_xxh3", digest);
        json_text(&json, "pattern", tokenizer_pattern(tokenizer));
    }
    if (prepare->eot != TOKENIZER_NONE) json_int(&json, "eot", prepare->eot);
    json_bool(&json, "appended_eot", prepare->settings.append_eot);
    json_int(&json, "token_bytes", prepare->train.wide ? 4 : 2);
    json_int(&json, "documents", (int64_t)prepare->batch.documents);
    json_int(&json, "bytes", (int64_t)prepare->batch.text_bytes);
    json_int(&json, "train_tokens", (int64_t)prepare->train.tokens);
    json_int(&json, "val_tokens", (int64_t)prepare->held.tokens);
    TRY(json_end(&json, &bytes));
    text[bytes++] = '\n';
    snprintf(path, sizeof path, "%smeta.json", prepare->prefix);
    struct files_writer writer;
    TRY(files_create(&writer, path));
    enum status status = files_write(&writer, text, bytes);
    if (status == STATUS_OK) status = files_commit(&writer);
    files_abandon(&writer);
    return status;
}

static void print_table(const struct prepare *prepare) {
    const struct token_shards *train = &prepare->train, *held = &prepare->held;
    uint64_t tokens = train->tokens + held->tokens;
    uint64_t bytes = prepare->batch.text_bytes;
    printf("documents      %12" PRIu64 "\n", prepare->batch.documents);
    printf("bytes of text  %12" PRIu64 "\n", bytes);
    printf("tokens         %12" PRIu64 "   %.3f bytes a token\n", tokens,
           tokens > 0 ? (double)bytes / (double)tokens : 0);
    printf("training       %12" PRIu64 "   in %" PRIu64 " files %strain_*.bin\n", train->tokens,
           train->shards, prepare->prefix);
    printf("validation     %12" PRIu64 "   in %" PRIu64 " files %sval_*.bin\n", held->tokens,
           held->shards, prepare->prefix);
    printf("vocabulary     %12" PRId64 "   %s, %d bytes a token, %smeta.json\n", prepare->vocab,
           prepare->settings.vocab, train->wide ? 4 : 2, prepare->prefix);
    printf("train with     rubato launch --data '%strain_*.bin'", prepare->prefix);
    if (held->shards > 0) printf(" --val-data '%sval_*.bin'", prepare->prefix);
    printf(" --vocab %" PRId64, prepare->vocab);
    if (prepare->tokenizer != NULL)
        printf(" --tokenizer %s%s%s", prepare->settings.vocab,
               prepare->settings.pattern[0] != '\0' ? "," : "", prepare->settings.pattern);
    printf("\n");
}

static int run(struct prepare *prepare) {
    int code = open_vocab(prepare);
    if (code == EXIT_CODE_OK) code = open_output(prepare);
    if (code != EXIT_CODE_OK) return code;
    int64_t threads = prepare->settings.threads;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads == 0) threads = cores > 0 ? (int64_t)cores : 1;
    enum status status = prepare_batch_open(&prepare->batch, prepare->tokenizer, threads);
    if (status != STATUS_OK) return (int)status_exit_code(status);
    prepare->batch.train = &prepare->train;
    prepare->batch.held = &prepare->held;
    if (prepare->settings.append_eot) prepare->batch.eot = prepare->eot;
    code = read_all(prepare);
    if (prepare->line_open) fputc('\n', stderr);
    if (code != EXIT_CODE_OK) return code;
    if (write_meta(prepare) != STATUS_OK) return EXIT_CODE_IO;
    if (prepare->settings.val_part > 0 && prepare->held.tokens == 0)
        log_warn("nothing was kept for validation: the texts are too short to be cut at %g",
                 1 - prepare->settings.val_part);
    print_table(prepare);
    return EXIT_CODE_OK;
}

static int prepare_run(int argc, char **argv) {
    static struct prepare prepare; // large, and there is one
    prepare = (struct prepare){0};
    options_init(&prepare.options, prepare_table, sizeof prepare_table / sizeof prepare_table[0],
                 &prepare.settings);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&prepare.options, 1, usage, stdout);
        return EXIT_CODE_OK;
    }
    int code = parse(&prepare, argc, argv);
    if (code == EXIT_CODE_OK) code = run(&prepare);
    prepare_batch_close(&prepare.batch);
    token_shards_free(&prepare.train);
    token_shards_free(&prepare.held);
    tokenizer_close(prepare.tokenizer);
    content_list_close(&prepare.inputs);
    return code;
}

const struct subcommand prepare_subcommand = {
    .name = "prepare",
    .summary = "turn texts into token files (.bin) with a vocabulary",
    .run = prepare_run,
};
