/* The options engine on a small table of its own.
 *
 * Proves, by tables of cases: what each type takes and refuses, and that a refusal leaves the
 * config as it was and says value, range and unit; that each value's text comes back to the same
 * bits; the precedence of the four origins in every order; the grammar of flags and config files;
 * what a user reads after each kind of mistake (standard error is a file meanwhile); and that
 * --print-config's output is a config file with the same values.
 */
#include "base/options.h"
#include "base/random.h"
#include "tests/test.h"

#include <unistd.h>

enum { ROLE_A = 1, ROLE_B = 2 };

struct config {
    int64_t steps, offset;
    double lr, bias;
    bool insecure;
    char mode[OPTION_TEXT_MAX], prompt[OPTION_TEXT_MAX];
    int64_t shards;
};

static bool check_mode(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "sync, async");
    return strcmp(text, "sync") == 0 || strcmp(text, "async") == 0;
}

#define AT(member) offsetof(struct config, member)
#define BOTH       (ROLE_A | ROLE_B)
static const struct option table[] = {
    {"steps", OPTION_INT, "100", 1, 1e6, "steps", "how long", true, BOTH, AT(steps), NULL},
    {"offset", OPTION_INT, "0", 0, 0, "", "unbounded", false, BOTH, AT(offset), NULL},
    {"lr", OPTION_REAL, "3e-4", 0, 10, "", "the rate", true, BOTH, AT(lr), NULL},
    {"bias", OPTION_REAL, "0", 0, 0, "volts", "unbounded", false, BOTH, AT(bias), NULL},
    {"insecure", OPTION_FLAG, "no", 0, 0, "", "no key", false, BOTH, AT(insecure), NULL},
    {"mode", OPTION_TEXT, "sync", 0, 0, "", "sync | async", true, BOTH, AT(mode), check_mode},
    {"start-prompt", OPTION_TEXT, "", 0, 0, "", "a text", false, BOTH, AT(prompt), NULL},
    {"shards", OPTION_INT, "1", 1, 256, "threads", "elsewhere", false, ROLE_B, AT(shards), NULL},
};
static const size_t table_count = sizeof table / sizeof table[0];

static void start(struct options *options, struct config *config) {
    memset(config, 0xee, sizeof *config);
    options_init(options, table, table_count, config);
}

static char *err_text;

/* options_parse of the words (NULL ends them), for ROLE_A; what it logged is in err_text. */
static enum status parse(struct options *options, const char *const *words) {
    static char arguments[16][400], logged[4096];
    char *argv[17] = {arguments[0]};
    int argc = 1;
    strcpy(arguments[0], "program");
    for (; words[argc - 1]; argc++) {
        snprintf(arguments[argc], sizeof arguments[0], "%s", words[argc - 1]);
        argv[argc] = arguments[argc];
    }
    FILE *file = tmpfile();
    CHECK(file);
    int saved = dup(STDERR_FILENO);
    CHECK(dup2(fileno(file), STDERR_FILENO) >= 0);
    enum status status = options_parse(options, ROLE_A, argc, argv);
    CHECK(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(file);
    logged[fread(logged, 1, sizeof logged - 1, file)] = 0;
    fclose(file);
    err_text = logged;
    return status;
}

#define PARSE(options, ...) parse(options, (const char *const[]){__VA_ARGS__, NULL})

static void test_defaults(void) {
    struct config config;
    struct options options;
    start(&options, &config);
    CHECK_INT(config.steps, 100);
    CHECK(config.lr == 3e-4);
    CHECK(!config.insecure);
    CHECK_TEXT(config.mode, "sync");
    CHECK_TEXT(config.prompt, "");
    for (size_t i = 0; i < table_count; i++)
        CHECK_INT(options.origins[i], ORIGIN_DEFAULT);
    CHECK_INT(options_find(&options, "lr"), 2);
    CHECK_INT(options_find(&options, "l"), -1);
    CHECK_INT(options_find(&options, ""), -1);
}

static void test_int_values(void) {
    static const struct {
        const char *text;
        int64_t expected;
    } good[] = {{"0", 0},
                {"-7", -7},
                {"+7", 7},
                {"007", 7},
                {"5k", 5000},
                {"-3m", -3000000},
                {"2g", 2000000000},
                {"4ki", 4096},
                {"1mi", 1048576},
                {"8gi", INT64_C(8) << 30},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    static const char *const bad[] = {"",
                                      "-",
                                      "k",
                                      " 1",
                                      "1 ",
                                      "1.5",
                                      "1e3",
                                      "0x10",
                                      "5kk",
                                      "5kib",
                                      "--1",
                                      "9223372036854775808",
                                      "9223372036854775807k",
                                      "-9223372036854775809",
                                      "nan"};
    struct config config;
    struct options options;
    char why[512];
    start(&options, &config);
    int index = options_find(&options, "offset");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_INT(options_set(&options, index, good[i].text, ORIGIN_FLAG, why, sizeof why),
                  STATUS_OK);
        CHECK_INT(config.offset, good[i].expected);
    }
    config.offset = 42;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(options_set(&options, index, bad[i], ORIGIN_FLAG, why, sizeof why),
                  STATUS_INVALID);
        CHECK_INT(config.offset, 42);
        CHECK(strstr(why, "(allowed: any whole number)"));
    }
}

static void test_real_values(void) {
    static const struct {
        const char *text;
        double expected;
    } good[] = {{"0", 0.0},       {"-2.5", -2.5}, {".5", 0.5},        {"1.", 1.0},
                {"3e-4", 0.0003}, {"1E6", 1e6},   {"5e-324", 5e-324}, {"1e-999", 0.0}};
    static const char *const bad[] = {"",      "nan",   "NaN",   "inf", "-inf", "infinity",
                                      "0x1p3", "1e999", " 1",    "1 ",  "1,5",  "1e",
                                      "--1",   "e5",    "1.2.3", ".",   "1e5e5"};
    struct config config;
    struct options options;
    char why[512];
    start(&options, &config);
    int index = options_find(&options, "bias");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_INT(options_set(&options, index, good[i].text, ORIGIN_FLAG, why, sizeof why),
                  STATUS_OK);
        CHECK(config.bias == good[i].expected);
    }
    config.bias = 42.0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(options_set(&options, index, bad[i], ORIGIN_FLAG, why, sizeof why),
                  STATUS_INVALID);
        CHECK(config.bias == 42.0);
        CHECK(strstr(why, "(allowed: any finite number of volts)"));
    }
}

static void check_why(const char *name, const char *text, const char *expected) {
    struct config config, before;
    struct options options;
    char why[512];
    start(&options, &config);
    memcpy(&before, &config, sizeof config);
    int index = options_find(&options, name);
    CHECK_INT(options_set(&options, index, text, ORIGIN_FLAG, why, sizeof why), STATUS_INVALID);
    CHECK_TEXT(why, expected);
    CHECK_INT(options.origins[index], ORIGIN_DEFAULT);
    CHECK(memcmp(&before, &config, sizeof config) == 0);
}

static void test_refusals(void) {
    char text[400], expected[512];
    check_why("lr", "x", "'x' is not a number (allowed: 0 to 10)");
    check_why("lr", "10.5", "'10.5' is out of range (allowed: 0 to 10)");
    check_why("lr", "-0.1", "'-0.1' is out of range (allowed: 0 to 10)");
    check_why("steps", "0", "'0' is out of range (allowed: 1 to 1000000 steps)");
    check_why("steps", "1001k", "'1001k' is out of range (allowed: 1 to 1000000 steps)");
    check_why("steps", "1.5", "'1.5' is not a whole number (allowed: 1 to 1000000 steps)");
    check_why("steps", "99999999999999999999",
              "'99999999999999999999' does not fit in 64 bits (allowed: 1 to 1000000 steps)");
    check_why("mode", "fast", "'fast' is not accepted (allowed: sync, async)");
    check_why("insecure", "maybe",
              "'maybe' is not true or false (allowed: true, false, yes, no, on, off, 1, 0)");
    memset(text, 'p', 256);
    text[256] = 0;
    snprintf(expected, sizeof expected,
             "'%.64s...' is too long (allowed: text of at most 255 bytes)", text);
    check_why("start-prompt", text, expected);
    struct config config;
    struct options options;
    start(&options, &config);
    text[255] = 0;
    CHECK_INT(options_set(&options, options_find(&options, "start-prompt"), text, ORIGIN_FLAG,
                          expected, sizeof expected),
              STATUS_OK);
    CHECK_TEXT(config.prompt, text);
}

/* Bounds are inclusive, a switch takes its eight words. */
static void test_limits(void) {
    struct config config;
    struct options options;
    char why[512];
    start(&options, &config);
    CHECK_INT(PARSE(&options, "--steps", "1", "--lr", "10"), STATUS_OK);
    CHECK_INT(config.steps, 1);
    CHECK_INT(PARSE(&options, "--steps=1m", "--lr=0"), STATUS_OK);
    CHECK_INT(config.steps, 1000000);
    CHECK(config.lr == 0.0);
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "1", "0"};
    for (int i = 0; i < 8; i++) {
        int index = options_find(&options, "insecure");
        CHECK_INT(options_set(&options, index, words[i], ORIGIN_FLAG, why, sizeof why), STATUS_OK);
        CHECK_INT(config.insecure, i % 2 == 0);
    }
}

static void check_real_round_trip(struct options *options, const struct config *config,
                                  double value) {
    char text[OPTION_TEXT_MAX], why[512];
    int index = options_find(options, "bias");
    struct config copy = *config;
    memcpy((char *)options->config + AT(bias), &value, sizeof value);
    options_text(options, index, text, sizeof text);
    memcpy((char *)options->config + AT(bias), &copy.bias, sizeof value);
    CHECK_INT(options_set(options, index, text, ORIGIN_FLAG, why, sizeof why), STATUS_OK);
    CHECK(memcmp(&config->bias, &value, sizeof value) == 0);
}

static void test_text_round_trip(void) {
    struct config config;
    struct options options;
    char text[OPTION_TEXT_MAX], why[512];
    struct random_stream stream;
    start(&options, &config);
    options_text(&options, options_find(&options, "lr"), text, sizeof text);
    CHECK_TEXT(text, "0.0003");
    options_text(&options, options_find(&options, "insecure"), text, sizeof text);
    CHECK_TEXT(text, "false");
    const double special[] = {0.0, -0.0, 0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -2.5};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        check_real_round_trip(&options, &config, special[i]);
    random_open(&stream, 3, RANDOM_SIMULATOR, 0);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = random_u64(&stream);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) check_real_round_trip(&options, &config, value);
        int index = options_find(&options, "offset");
        int64_t whole = (int64_t)(bits >> (bits & 63));
        config.offset = whole;
        options_text(&options, index, text, sizeof text);
        config.offset = ~whole;
        CHECK_INT(options_set(&options, index, text, ORIGIN_FLAG, why, sizeof why), STATUS_OK);
        CHECK_INT(config.offset, whole);
    }
}

/* Each pair of origins in both orders: the higher one stays, an equal one replaces. */
static void test_precedence(void) {
    char why[512];
    for (int first = ORIGIN_DEFAULT; first <= ORIGIN_FLAG; first++) {
        for (int second = ORIGIN_DEFAULT; second <= ORIGIN_FLAG; second++) {
            struct config config;
            struct options options;
            start(&options, &config);
            enum status set_first =
                options_set(&options, 0, "11", (enum option_origin)first, why, sizeof why);
            enum status set_second =
                options_set(&options, 0, "22", (enum option_origin)second, why, sizeof why);
            CHECK_INT(set_first, STATUS_OK);
            CHECK_INT(set_second, STATUS_OK);
            CHECK_INT(config.steps, second >= first ? 22 : 11);
            CHECK_INT(options.origins[0], second >= first ? second : first);
            CHECK_INT(options_set(&options, 0, "x", ORIGIN_DEFAULT, why, sizeof why),
                      STATUS_INVALID); /* checked, even where it would not replace */
        }
    }
}

static char config_path[64];

static void write_config(const char *text) {
    FILE *file = fopen(config_path, "w");
    CHECK(file);
    fputs(text, file);
    CHECK_INT(fclose(file), 0);
}

static void test_all_origins(void) {
    struct config config;
    struct options options;
    write_config("steps = 2\nlr = 2\noffset = 2\nshards = 7\n");
    CHECK_INT(setenv("RUBATO_LR", "3", 1), 0);
    CHECK_INT(setenv("RUBATO_OFFSET", "3", 1), 0);
    CHECK_INT(setenv("RUBATO_START_PROMPT", "from the environment", 1), 0);
    CHECK_INT(setenv("RUBATO_MODE", "", 1), 0);          /* empty: not set */
    CHECK_INT(setenv("RUBATO_SHARDS", "rubbish", 1), 0); /* of another role */
    start(&options, &config);
    CHECK_INT(PARSE(&options, "--config", config_path, "--offset", "4"), STATUS_OK);
    CHECK_TEXT(err_text, "");
    CHECK_INT(config.steps, 2);
    CHECK(config.lr == 3.0);
    CHECK_INT(config.offset, 4);
    CHECK_TEXT(config.prompt, "from the environment");
    CHECK_INT(config.shards, 1);
    CHECK_INT(options.origins[options_find(&options, "steps")], ORIGIN_FILE);
    CHECK_INT(options.origins[options_find(&options, "lr")], ORIGIN_ENVIRONMENT);
    CHECK_INT(options.origins[options_find(&options, "offset")], ORIGIN_FLAG);
    CHECK_INT(options.origins[options_find(&options, "mode")], ORIGIN_DEFAULT);
    CHECK_INT(setenv("RUBATO_LR", "11", 1), 0);
    start(&options, &config);
    CHECK_INT(PARSE(&options, "--offset=4"), STATUS_INVALID);
    CHECK(strstr(err_text, " error RUBATO_LR (--lr): '11' is out of range (allowed: 0 to 10)\n"));
    unsetenv("RUBATO_LR");
    unsetenv("RUBATO_OFFSET");
    unsetenv("RUBATO_START_PROMPT");
    unsetenv("RUBATO_MODE");
    unsetenv("RUBATO_SHARDS");
}

static void test_flag_grammar(void) {
    struct config config;
    struct options options;
    start(&options, &config);
    CHECK_INT(PARSE(&options, "--insecure", "--lr=1", "--offset", "-5", "--help", "--print-config",
                    "--version", "--start-prompt=--a=b", "--lr", "2"),
              STATUS_OK);
    CHECK(config.insecure);
    CHECK(config.lr == 2.0); /* the last one counts */
    CHECK_INT(config.offset, -5);
    CHECK_TEXT(config.prompt, "--a=b");
    CHECK_INT(PARSE(&options, "--no-insecure", "--start-prompt="), STATUS_OK);
    CHECK(!config.insecure);
    CHECK_TEXT(config.prompt, "");
    CHECK_INT(PARSE(&options, "--insecure=yes"), STATUS_OK);
    CHECK(config.insecure);
    char program[] = "--help", word[] = "--helpful", help[] = "--help";
    char *argv[] = {program, word, help};
    CHECK(!options_wants(1, argv, "--help")); /* the program's own name is none */
    CHECK(!options_wants(2, argv, "--help"));
    CHECK(options_wants(3, argv, "--help"));
}

static void check_message(const char *first, const char *second, const char *expected) {
    struct config config, before;
    struct options options;
    start(&options, &config);
    memcpy(&before, &config, sizeof config);
    CHECK_INT(PARSE(&options, first, second), STATUS_INVALID);
    const char *text = strstr(err_text, " error ");
    CHECK(text);
    CHECK(strchr(text, '\n') == text + strlen(text) - 1);
    char line[512];
    snprintf(line, sizeof line, "%s", text + strlen(" error "));
    line[strcspn(line, "\n")] = 0;
    CHECK_TEXT(line, expected);
    CHECK(memcmp(&before, &config, sizeof config) == 0);
}

static void test_messages(void) {
    check_message("--lr", "x", "--lr: 'x' is not a number (allowed: 0 to 10)");
    check_message("--step", "5", "unknown option --step, did you mean --steps?");
    check_message("--stesp=5", NULL, "unknown option --stesp, did you mean --steps?");
    check_message("--hlep", NULL, "unknown option --hlep, did you mean --help?");
    check_message("--start_prompt", "x",
                  "unknown option --start_prompt, did you mean --start-prompt?");
    check_message("--shard", "2", "unknown option --shard (--help lists all)"); /* not ours */
    check_message("--qqqqqqqq", NULL, "unknown option --qqqqqqqq (--help lists all)");
    check_message("--no-lr", NULL, "unknown option --no-lr (--help lists all)");
    check_message("--help=1", NULL, "--help: takes no value");
    check_message("--shards", "2",
                  "--shards: unknown for this program, it belongs to another one of the job");
    check_message("steps", "5", "'steps' is not an option (allowed: --NAME VALUE, --NAME=VALUE)");
    check_message("-h", NULL, "'-h' is not an option (allowed: --NAME VALUE, --NAME=VALUE)");
    check_message("--", NULL, "'--' is not an option (allowed: --NAME VALUE, --NAME=VALUE)");
    check_message("--=5", NULL, "'--=5' is not an option (allowed: --NAME VALUE, --NAME=VALUE)");
    check_message("--lr", NULL, "--lr: needs a value (allowed: 0 to 10)");
    check_message("--lr", "--steps", "--lr: needs a value (allowed: 0 to 10)");
    check_message("--config", NULL, "--config: needs a value (allowed: path of a file)");
    check_message("--no-insecure=1", NULL,
                  "--no-insecure: takes no value (allowed: --insecure, --no-insecure)");
    check_message("--config", "/no/such/file",
                  "cannot open /no/such/file: No such file or directory");
    char name[300] = "--";
    memset(name + 2, 'z', 200);
    struct config config;
    struct options options;
    start(&options, &config);
    CHECK_INT(PARSE(&options, name), STATUS_INVALID);
    CHECK(strstr(err_text, "unknown option --zzzz"));
}

static enum status parse_text(struct options *options, const char *text) {
    write_config(text);
    return PARSE(options, "--config", config_path);
}

static void test_config_grammar(void) {
    struct config config;
    struct options options;
    start(&options, &config);
    CHECK_INT(parse_text(&options, "# comment\n"
                                   "\n"
                                   "   \t\r\n"
                                   "  steps=7# close\n"
                                   "lr\t=\t0.5   # comment\r\n"
                                   "insecure = yes\n"
                                   "start-prompt = \"a # \\\"b\\\" \\\\ \\n\\t\\r'\"  # comment\n"
                                   "mode = 'async'"),
              STATUS_OK);
    CHECK_INT(config.steps, 7);
    CHECK(config.lr == 0.5 && config.insecure);
    CHECK_TEXT(config.prompt, "a # \"b\" \\ \n\t\r'");
    CHECK_TEXT(config.mode, "async");
    CHECK_INT(parse_text(&options, "start-prompt = two words \nstart-prompt = '\\n\"'"), STATUS_OK);
    CHECK_TEXT(config.prompt, "\\n\"");
    CHECK_INT(parse_text(&options, "start-prompt ="), STATUS_OK);
    CHECK_TEXT(config.prompt, "");
    CHECK_INT(parse_text(&options, ""), STATUS_OK);
}

static void test_config_refusals(void) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"steps 5", "line 1: is not of the form name = value"},
        {"= 5", "line 1: is not of the form name = value"},
        {"\n[job]\n", "line 2: is not of the form name = value"},
        {"\n\nstep = 5", "line 3: unknown option --step, did you mean --steps?"},
        {"steps = 0\n", "line 1: --steps: '0' is out of range (allowed: 1 to 1000000 steps)"},
        {"steps =\n", "line 1: --steps: '' is not a whole number"},
        {"config = x", "line 1: unknown option --config"},
        {"mode = \"sync", "line 1: quote without an end"},
        {"mode = \"sync\\", "line 1: unknown escape"},
        {"mode = \"\\x41\"", "line 1: unknown escape"},
        {"mode = 'sync' x", "line 1: has text behind the quoted value"},
        {"start-prompt = 'a\nb'", "line 1: quote without an end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config config;
        struct options options;
        start(&options, &config);
        CHECK_INT(parse_text(&options, cases[i].text), STATUS_INVALID);
        if (!strstr(err_text, cases[i].message)) fprintf(stderr, "logged: %s", err_text);
        CHECK(strstr(err_text, cases[i].message));
        CHECK(strstr(err_text, config_path) && config.steps == 100);
    }
    static char longest[3000];
    memset(longest, ' ', sizeof longest - 1);
    struct config config;
    struct options options;
    start(&options, &config);
    CHECK_INT(parse_text(&options, longest), STATUS_INVALID);
    CHECK(strstr(err_text, "line 1: is longer than 1023 bytes"));
    CHECK_INT(options_parse_config(&options, ROLE_A, "zero", "lr = 1\0", 7), STATUS_INVALID);
}

/* What print() writes, in memory that the caller frees. */
static char *printed_config(const struct options *options, unsigned role) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out);
    options_print_config(options, role, out);
    CHECK_INT(fclose(out), 0);
    return text;
}

static void test_print_config(void) {
    struct config config, again;
    struct options options;
    start(&options, &config);
    CHECK_INT(PARSE(&options, "--lr", "0.1", "--bias=0.30000000000000004", "--insecure",
                    "--start-prompt= #\"'\\ \n\t\r\x01\xff "),
              STATUS_OK);
    char *text = printed_config(&options, ROLE_A);
    CHECK(strstr(text, "steps = 100  # default\n"));
    CHECK(strstr(text, "lr = 0.1  # flag\n"));
    CHECK(strstr(text, "mode = \"sync\"  # default\n"));
    CHECK(!strstr(text, "shards"));
    start(&options, &again);
    CHECK_INT(parse_text(&options, text), STATUS_OK);
    CHECK(again.lr == config.lr && again.bias == config.bias && again.insecure);
    CHECK(memcmp(again.prompt, config.prompt, sizeof config.prompt) == 0);
    CHECK_TEXT(again.prompt, " #\"'\\ \n\t\r\x01\xff ");
    free(text);
    text = printed_config(&options, ROLE_B);
    CHECK(strstr(text, "shards = 1  # default\n"));
    CHECK(strstr(text, "lr = 0.1  # file\n"));
    free(text);
}

static void test_print_help(void) {
    struct config config;
    struct options options;
    char *text = NULL;
    size_t bytes = 0;
    start(&options, &config);
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out);
    options_print_help(&options, ROLE_A, "usage: program [options]\n", out);
    CHECK_INT(fclose(out), 0);
    CHECK(strncmp(text, "usage: program [options]\n", 25) == 0);
    CHECK(strstr(text, "  --steps N\n      how long (1 to 1000000 steps; default 100)\n"));
    CHECK(strstr(text, "  --[no-]insecure\n      no key (default no)\n"));
    CHECK(strstr(text, "  --start-prompt TEXT\n      a text (default empty)\n"));
    CHECK(strstr(text, "--config FILE") && strstr(text, "--print-config"));
    CHECK(!strstr(text, "--shards"));
    free(text);
    out = open_memstream(&text, &bytes);
    CHECK(out);
    options_print_markdown(&options, out);
    CHECK_INT(fclose(out), 0);
    CHECK(strstr(text, "| `--lr` | `3e-4` | 0 to 10 | yes | the rate |\n"));
    CHECK(strstr(text, "| `--mode` | `sync` | text | yes | sync \\| async |\n"));
    CHECK(strstr(text, "| `--shards` | `1` | 1 to 256 threads | no | elsewhere |\n"));
    int lines = 0;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    CHECK_INT(lines, (int)table_count + 2);
    free(text);
}

int main(void) {
    snprintf(config_path, sizeof config_path, "/tmp/rubato-test-XXXXXX");
    int fd = mkstemp(config_path);
    CHECK(fd >= 0);
    close(fd);
    TEST_RUN(test_defaults);
    TEST_RUN(test_int_values);
    TEST_RUN(test_real_values);
    TEST_RUN(test_refusals);
    TEST_RUN(test_limits);
    TEST_RUN(test_text_round_trip);
    TEST_RUN(test_precedence);
    TEST_RUN(test_all_origins);
    TEST_RUN(test_flag_grammar);
    TEST_RUN(test_messages);
    TEST_RUN(test_config_grammar);
    TEST_RUN(test_config_refusals);
    TEST_RUN(test_print_config);
    TEST_RUN(test_print_help);
    CHECK_INT(unlink(config_path), 0);
    return 0;
}
