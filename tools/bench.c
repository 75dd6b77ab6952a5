/* bench.c - `rubato bench`: how fast this machine moves and applies blocks. */
#include "base/json.h"
#include "base/log.h"
#include "tools/bench_apply.h"
#include "tools/bench_exchange.h"
#include "tools/bench_rig.h"
#include "tools/bench_shard.h"
#include "tools/subcommand.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZES_MAX 16

/* The kinds, as roles of options: an option of another kind is refused. */
enum { EXCHANGE = 1, PUSH = 2, PULL = 4, APPLY = 8 };
#define SHARDS_TOO (PUSH | PULL)
#define NETWORK    (EXCHANGE | PUSH | PULL)
#define ALL_KINDS  (NETWORK | APPLY)

struct kind {
    const char *name;
    unsigned role;
    bench_part_fn *server, *worker; /* NULL: no processes */
};

static const struct kind kinds[] = {
    {"exchange", EXCHANGE, bench_exchange_server, bench_exchange_worker},
    {"push", PUSH, bench_shard_server, bench_shard_worker},
    {"pull", PULL, bench_shard_server, bench_shard_worker},
    {"apply", APPLY, NULL, NULL},
};
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

static const char usage[] =
    "usage: rubato bench exchange|push|pull|apply [--flag VALUE ...]\n"
    "\n"
    "Measures on this machine, between processes of its own, what a job's data path does:\n"
    "  exchange  raw frames between workers and shards: no codec, no optimizer\n"
    "  push      workers encode and push gradients, real shards sum, step and answer (sync)\n"
    "  pull      workers pull all weights from real shards and install them\n"
    "  apply     one shard fed with the workers' pushes in memory: no channel\n"
    "GB/s and CPU s/GB count payloads (exchange, of both directions together) or values in f32 "
    "(the\n"
    "others), 1e9 bytes; CPU is of all threads, user and system. For push, pull and apply --bytes\n"
    "is the size of a block. An option that a kind has no use for is refused.\n"
    "\n"
    "examples:\n"
    "  rubato bench exchange --channel ucx --bytes 1mi,4mi --direction both --seconds 5\n"
    "  rubato bench exchange --channel shm --workers 2 --shards 2 --json exchange.jsonl\n"
    "  rubato bench push --push int8 --pull delta-int8 --workers 2\n"
    "  rubato bench apply --push topk:0.01 --workers 8 --optimizer adamw\n";

static bool check_direction(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "push, pull, both");
    return strcmp(text, "push") == 0 || strcmp(text, "pull") == 0 || strcmp(text, "both") == 0;
}

#define AT(field) offsetof(struct bench_options, field)

/* What the job's table checks has no check here. */
static const struct option table[] = {
    {"bytes", OPTION_TEXT, "1mi,4mi", 0, 0, "bytes", "sizes of a message, by commas, a row each",
     false, ALL_KINDS, AT(bytes), NULL},
    {"direction", OPTION_TEXT, "both", 0, 0, "", "push, pull, or both (a push and its answer)",
     false, EXCHANGE, AT(direction), check_direction},
    {"workers", OPTION_INT, "1", 1, 1024, "processes", "workers", false, ALL_KINDS, AT(workers),
     NULL},
    {"shards", OPTION_INT, "1", 1, 256, "threads", "shards, all in one server process", false,
     NETWORK, AT(shards), NULL},
    {"blocks", OPTION_INT, "16", 1, 65536, "blocks", "blocks of the model", false,
     SHARDS_TOO | APPLY, AT(blocks), NULL},
    {"depth", OPTION_INT, "4", 1, 1024, "messages",
     "messages that a worker has under way to each shard", false, EXCHANGE, AT(depth), NULL},
    {"seconds", OPTION_REAL, "3", 0.05, 3600, "seconds", "time measured for each row", false,
     ALL_KINDS, AT(seconds), NULL},
    {"channel", OPTION_TEXT, "ucx", 0, 0, "", "auto, shm, ucx or tls, as of a job", false, NETWORK,
     AT(channel), NULL},
    {"wire", OPTION_TEXT, "auto", 0, 0, "",
     "with --channel tls: plain, auth or encrypt (auto), by a key of the run's own", false, NETWORK,
     AT(wire), NULL},
    {"net-devices", OPTION_TEXT, "", 0, 0, "", "UCX devices; empty: the loopback interface", false,
     NETWORK, AT(net_devices), NULL},
    {"tls", OPTION_TEXT, "", 0, 0, "", "UCX's name for transports, as of a job", false, NETWORK,
     AT(tls), NULL},
    {"poll", OPTION_TEXT, "sleep", 0, 0, "", "sleep, adaptive or busy, as of a job", false, NETWORK,
     AT(poll), NULL},
    {"push", OPTION_TEXT, "bf16", 0, 0, "", "codec of gradients, as of a job", false, PUSH | APPLY,
     AT(push), NULL},
    {"pull", OPTION_TEXT, "bf16", 0, 0, "", "codec of weights, as of a job", false,
     SHARDS_TOO | APPLY, AT(pull), NULL},
    {"optimizer", OPTION_TEXT, "adamw", 0, 0, "", "of the shards, as of a job", false, PUSH | APPLY,
     AT(optimizer), NULL},
    {"checksum", OPTION_FLAG, "no", 0, 0, "", "take and check payloads' checksums, as a job does",
     false, EXCHANGE, AT(checksum), NULL},
    {"json", OPTION_TEXT, "", 0, 0, "file", "also write the rows here, a JSON object a line", false,
     ALL_KINDS, AT(json), NULL},
};
enum { OPTION_COUNT = sizeof table / sizeof table[0] };

/* ---- one command ---- */

struct bench {
    struct options options;
    struct bench_options config;
    const struct kind *kind;
    const char *direction;
    int64_t sizes[SIZES_MAX];
    size_t size_count;
    int exit_code; /* of a process of a run that failed; 0: none did */
    FILE *json;
};

/* "1mi,4mi" -> sizes, each by the options' own parser. */
static enum status read_sizes(struct bench *bench) {
    static const struct option one[] = {{"bytes", OPTION_INT, "256", 256, 64 << 20, "bytes",
                                         "size of a message", false, ALL_KINDS, 0, NULL}};
    int64_t value;
    struct options options;
    char list[OPTION_TEXT_MAX], why[OPTION_TEXT_MAX], *rest = list;
    snprintf(list, sizeof list, "%s", bench->config.bytes);
    for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ",")) {
        options_init(&options, one, 1, &value);
        enum status status = options_set(&options, 0, item, ORIGIN_FLAG, why, sizeof why);
        if (status == STATUS_OK && value % (int64_t)sizeof(float) != 0) {
            snprintf(why, sizeof why, "'%s' is no multiple of 4, the size of a value", item);
            status = STATUS_INVALID;
        }
        if (status == STATUS_OK && bench->size_count == SIZES_MAX) {
            snprintf(why, sizeof why, "more than %d sizes", SIZES_MAX);
            status = STATUS_INVALID;
        }
        if (status != STATUS_OK) {
            log_error("--bytes: %s", why);
            return status;
        }
        bench->sizes[bench->size_count++] = value;
    }
    return STATUS_OK;
}

static void print_head(const struct bench *bench) {
    const struct bench_options *config = &bench->config;
    if (!bench->kind->server) {
        printf("apply: %lld workers' pushes of %lld blocks, --push %s --pull %s --optimizer %s\n",
               (long long)config->workers, (long long)config->blocks, config->push, config->pull,
               config->optimizer);
    } else {
        printf("%s: %lld workers x %lld shards, --channel %s --poll %s\n", bench->kind->name,
               (long long)config->workers, (long long)config->shards, config->channel,
               config->poll);
    }
    printf("%10s %-9s %8s %8s %9s %9s %9s %10s %10s %10s\n", "bytes", "direction", "GB/s",
           "wire GB/s", "CPU s/GB", "server", "workers", "messages/s", "median us", "p99 us");
}

static void print_row(const struct bench *bench, int64_t bytes, const struct bench_result *result) {
    double gb = result->payload_gb;
    printf("%10lld %-9s %8.3f %8.3f %9.3f %9.3f %9.3f %10.0f %10.0f %10.0f\n", (long long)bytes,
           bench->direction, gb / result->seconds, result->wire_gb / result->seconds,
           (result->server_cpu + result->workers_cpu) / gb, result->server_cpu / gb,
           result->workers_cpu / gb, result->messages / result->seconds, result->latency_median_us,
           result->latency_p99_us);
    (void)fflush(stdout);
}

static enum status write_row(struct bench *bench, int64_t bytes,
                             const struct bench_result *result) {
    char line[1024];
    size_t used;
    struct json json;
    const struct bench_options *config = &bench->config;
    if (!bench->json) return STATUS_OK;
    json_begin(&json, line, sizeof line);
    json_text(&json, "bench", bench->kind->name);
    json_text(&json, "direction", bench->direction);
    if (bench->kind->server) {
        json_text(&json, "channel", config->channel);
        json_text(&json, "poll", config->poll);
        json_int(&json, "shards", config->shards);
    }
    if (bench->kind->role == PUSH || !bench->kind->server) json_text(&json, "push", config->push);
    if (bench->kind->role != EXCHANGE) json_text(&json, "pull", config->pull);
    json_int(&json, "workers", config->workers);
    json_int(&json, "bytes", bytes);
    json_real(&json, "seconds", result->seconds, 6);
    json_real(&json, "payload_gb", result->payload_gb, 15);
    json_real(&json, "wire_gb", result->wire_gb, 15);
    json_real(&json, "gb_s", result->payload_gb / result->seconds, 6);
    json_real(&json, "server_cpu_s", result->server_cpu, 6);
    json_real(&json, "workers_cpu_s", result->workers_cpu, 6);
    json_real(&json, "cpu_s_gb", (result->server_cpu + result->workers_cpu) / result->payload_gb,
              6);
    json_real(&json, "messages", result->messages, 15);
    json_real(&json, "median_us", result->latency_median_us, 6);
    json_real(&json, "p99_us", result->latency_p99_us, 6);
    TRY(json_end(&json, &used));
    if (fprintf(bench->json, "%s\n", line) > 0 && fflush(bench->json) == 0) return STATUS_OK;
    log_error("--json %s: %s", config->json, strerror(errno));
    return STATUS_IO;
}

static enum status run_size(struct bench *bench, int64_t bytes) {
    struct bench_run run;
    struct bench_result result = {0};
    TRY(bench_rig_init(&run, &bench->config, bench->direction, (size_t)bytes));
    if (bytes == bench->sizes[0]) print_head(bench); /* the options are known to be sound */
    if (bench->kind->server) {
        enum status status = bench_rig_run(&run, bench->kind->server, bench->kind->worker, &result);
        bench->exit_code = run.exit_code;
        TRY(status);
    } else {
        TRY(bench_apply_run(&run, &result));
    }
    if (result.payload_gb <= 0) {
        log_error("nothing came to its end in %g s: give more --seconds, or smaller --bytes",
                  bench->config.seconds);
        return STATUS_TIMEOUT;
    }
    print_row(bench, bytes, &result);
    return write_row(bench, bytes, &result);
}

static int measure(struct bench *bench) {
    enum status status = STATUS_OK;
    if (bench->config.json[0]) {
        bench->json = fopen(bench->config.json, "we");
        if (!bench->json) {
            log_error("--json %s: %s", bench->config.json, strerror(errno));
            return EXIT_CODE_CREATE;
        }
    }
    for (size_t i = 0; i < bench->size_count && status == STATUS_OK; i++) {
        status = run_size(bench, bench->sizes[i]);
    }
    if (bench->json && fclose(bench->json) != 0 && status == STATUS_OK) {
        log_error("--json %s: %s", bench->config.json, strerror(errno));
        status = STATUS_IO;
    }
    return bench->exit_code != 0 ? bench->exit_code : (int)status_exit_code(status);
}

static const struct kind *find_kind(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < KIND_COUNT; i++) {
        if (strcmp(argv[1], kinds[i].name) == 0) return &kinds[i];
    }
    return NULL;
}

static int bench_run(int argc, char **argv) {
    struct bench bench = {.kind = find_kind(argc, argv)};
    options_init(&bench.options, table, OPTION_COUNT, &bench.config);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&bench.options, bench.kind ? bench.kind->role : ALL_KINDS, usage,
                           stdout);
        return EXIT_CODE_OK;
    }
    if (!bench.kind) {
        log_error("bench: %s%s%s; there are exchange, push, pull and apply (`rubato bench --help`)",
                  argc > 1 ? "'" : "say what to measure", argc > 1 ? argv[1] : "",
                  argc > 1 ? "' is nothing to measure" : "");
        return EXIT_CODE_USAGE;
    }
    log_set_level(LOG_WARN);
    if (options_parse(&bench.options, bench.kind->role, argc - 1, argv + 1) != STATUS_OK ||
        read_sizes(&bench) != STATUS_OK) {
        return EXIT_CODE_USAGE;
    }
    bench.direction = bench.kind->role == EXCHANGE ? bench.config.direction : bench.kind->name;
    return measure(&bench);
}

const struct subcommand bench_subcommand = {
    .name = "bench",
    .summary = "measure channels, shards and codecs on this machine",
    .run = bench_run,
};
