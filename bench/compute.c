/* bench_compute: how fast one process computes training steps, against oneDNN and against PyTorch.
 *
 * Measures steps of a model (training.h) phase by phase, and what part of the speed that oneDNN
 * reaches with the same products the whole step keeps. With --peer torch, the same step is measured
 * in PyTorch (peer_torch.py) on the same cores with the same number of threads, in turns: ours, the
 * peer's, ours, ... Figures are medians over all measured steps.
 */
#include "base/json.h"
#include "base/log.h"
#include "base/options.h"
#include "bench/median.h"
#include "bench/onednn_peak.h"
#include "bench/peer.h"
#include "bench/training.h"
#include "kernels/device.h"
#include "kernels/linear.h"
#include "kernels/threads.h"
#include "proto/job.h"
#include "worker/model_flops.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const char usage[] =
    "usage: bench_compute [--flag VALUE ...]\n"
    "\n"
    "Times training steps of one model in this process and prints the medians. For figures that\n"
    "mean something, nothing else should run on the machine.\n"
    "\n"
    "examples:\n"
    "  bench_compute --model gpt2:124M --vocab 50257 --batch 4 --seq-len 64\n"
    "  bench_compute --model gpt2:small --compute bf16 --threads 1 --peer torch\n"
    "  bench_compute --model gpt2:124M --vocab 50257 --seq-len 1024 --device cuda:0 \\\n"
    "      --compute bf16\n";

enum { STEPS_MAX = 1000, ROUNDS_MAX = 100 };

struct bench {
    char model[OPTION_TEXT_MAX];
    int64_t vocab, batch, seq_len;
    char device[OPTION_TEXT_MAX];
    char compute[OPTION_TEXT_MAX];
    char recompute[OPTION_TEXT_MAX];
    double dropout;
    int64_t threads, steps, rounds;
    char peer[OPTION_TEXT_MAX], python[OPTION_TEXT_MAX], script[OPTION_TEXT_MAX];
    char json[OPTION_TEXT_MAX];
};

static bool check_compute(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "f32, bf16, auto");
    return strcmp(text, "f32") == 0 || strcmp(text, "bf16") == 0 || strcmp(text, "auto") == 0;
}

static bool check_peer(const char *text, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "torch, or nothing");
    return *text == '\0' || strcmp(text, "torch") == 0;
}

static bool check_device(const char *text, char *why, size_t why_bytes) {
    enum device_kind kind;
    int index;
    snprintf(why, why_bytes, "cpu, cuda:N");
    return device_name_parse(text, &kind, &index);
}

#define AT(field) offsetof(struct bench, field)
static bool check_recompute(const char *text, char *why, size_t why_bytes) {
    int64_t every = 0;
    bool attention = false;
    if (job_recompute(text, &every, &attention) == STATUS_OK) {
        return true;
    }
    (void)snprintf(why, why_bytes, "none, attention or every:N");
    return false;
}

static const struct option table[] = {
    {"model", OPTION_TEXT, "gpt2:small", 0, 0, "", "what is trained, as in rubato --model", false,
     1, AT(model), NULL},
    {"vocab", OPTION_INT, "256", 1, 16777216, "tokens", "size of the vocabulary", false, 1,
     AT(vocab), NULL},
    {"batch", OPTION_INT, "8", 1, 4096, "sequences", "sequences of a step", false, 1, AT(batch),
     NULL},
    {"seq-len", OPTION_INT, "256", 1, 65536, "tokens", "length of a sequence", false, 1,
     AT(seq_len), NULL},
    {"device", OPTION_TEXT, "cpu", 0, 0, "", "what computes: cpu or cuda:N", false, 1, AT(device),
     check_device},
    {"compute", OPTION_TEXT, "f32", 0, 0, "", "number type of the products: f32, bf16 or auto",
     false, 1, AT(compute), check_compute},
    {"recompute", OPTION_TEXT, "none", 0, 0, "",
     "what backward computes again: none, attention or every:N layers", false, 1, AT(recompute),
     check_recompute},
    {"dropout", OPTION_REAL, "0", 0, 0.95, "",
     "part of the activations that is dropped; ours alone", false, 1, AT(dropout), NULL},
    {"threads", OPTION_INT, "0", 0, 1024, "threads", "threads that compute; 0: all cores", false, 1,
     AT(threads), NULL},
    {"steps", OPTION_INT, "3", 1, 10, "steps", "steps of one turn", false, 1, AT(steps), NULL},
    {"rounds", OPTION_INT, "5", 1, ROUNDS_MAX, "turns", "turns of each side", false, 1, AT(rounds),
     NULL},
    {"peer", OPTION_TEXT, "", 0, 0, "", "what to measure in turns with: torch, or nothing", false,
     1, AT(peer), check_peer},
    {"python", OPTION_TEXT, "python3", 0, 0, "file", "the interpreter that has PyTorch", false, 1,
     AT(python), NULL},
    {"script", OPTION_TEXT, RUBATO_BENCH_FOLDER "/peer_torch.py", 0, 0, "file",
     "the peer's program", false, 1, AT(script), NULL},
    {"json", OPTION_TEXT, "", 0, 0, "file", "adds a line with the figures to it", false, 1,
     AT(json), NULL},
};
#define TABLE_COUNT (sizeof table / sizeof table[0])

/* What was measured: one entry a step. */
struct figures {
    size_t count;
    double phases[TRAINING_PHASES][STEPS_MAX];
    double total[STEPS_MAX];
    double peer[STEPS_MAX];
};

static bool is_on_host(const struct bench *bench) {
    return strncmp(bench->device, "cpu", 3) == 0;
}

static bool is_bf16(const struct bench *bench) {
    bool fast = !is_on_host(bench) || linear_bf16_is_fast();
    return strcmp(bench->compute, "bf16") == 0 || (strcmp(bench->compute, "auto") == 0 && fast);
}

/* `env NAME=value python script --sizes`: its threads are ours. */
static enum status open_peer(const struct bench *bench, const struct training *training,
                             struct peer *peer) {
    enum { WORDS = 24 };
    char words[WORDS][OPTION_TEXT_MAX + 32];
    char *argv[WORDS];
    size_t count = 0;
    const struct model_shape *shape = &training->shape;
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"layers", shape->layers},       {"channels", shape->channels},
                 {"heads", shape->heads},         {"vocab", shape->vocab},
                 {"positions", shape->positions}, {"batch", bench->batch},
                 {"seq-len", bench->seq_len},     {"threads", bench->threads}};
    if (strncmp(bench->model, "gpt2:", 5) != 0) {
        log_error("--peer torch knows GPT-2 alone, not %s", bench->model);
        return STATUS_INVALID;
    }
    snprintf(words[count++], sizeof words[0], "env");
    snprintf(words[count++], sizeof words[0], "OMP_NUM_THREADS=%" PRId64, bench->threads);
    snprintf(words[count++], sizeof words[0], "%s", bench->python);
    snprintf(words[count++], sizeof words[0], "%s", bench->script);
    snprintf(words[count++], sizeof words[0], "--compute=%s", is_bf16(bench) ? "bf16" : "f32");
    snprintf(words[count++], sizeof words[0], "--device=%s", bench->device);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(words[count++], sizeof words[0], "--%s=%" PRId64, sizes[i].name, sizes[i].value);
    }
    for (size_t i = 0; i < count; i++) {
        argv[i] = words[i];
    }
    argv[count] = NULL;
    return peer_open(peer, argv);
}

/* Turns: `steps` steps of ours, then as many of the peer's. */
static enum status measure(const struct bench *bench, struct training *training, struct peer *peer,
                           struct figures *figures) {
    double seconds[TRAINING_PHASES];
    for (int i = 0; i < 3; i++) {
        (void)training_step(training, seconds);
        TRY(model_status(training->model));
    }
    for (int64_t round = 0; round < bench->rounds; round++) {
        for (int64_t step = 0; step < bench->steps; step++) {
            size_t at = figures->count + (size_t)step;
            (void)training_step(training, seconds);
            TRY(model_status(training->model));
            figures->total[at] = 0;
            for (int phase = 0; phase < TRAINING_PHASES; phase++) {
                figures->phases[phase][at] = seconds[phase];
                figures->total[at] += seconds[phase];
            }
        }
        if (peer != NULL) {
            TRY(peer_steps(peer, (int)bench->steps, figures->peer + figures->count));
        }
        figures->count += (size_t)bench->steps;
    }
    return STATUS_OK;
}

static void print_job(const struct bench *bench, const struct training *training) {
    printf("model    %s, %" PRIu64 " parameters, vocabulary %" PRId64 "\n", bench->model,
           training->plan.value_count, bench->vocab);
    printf("step     B=%" PRId64 " T=%" PRId64 ", %s on %s, %" PRId64
           " threads; medians of %" PRId64 " steps\n",
           bench->batch, bench->seq_len, is_bf16(bench) ? "bf16" : "f32",
           training->config.device->name, bench->threads, bench->steps * bench->rounds);
}

/* What the model is planned to take, and the most that the whole process took: the latter also has
 * weights, gradient and moments, 16 bytes a value. Before oneDNN's own run, which takes its own. */
static void print_memory(const struct bench *bench, const struct training *training) {
    struct rusage used;
    struct device_memory memory;
    device_memory(training->config.device, &memory);
    if (!is_on_host(bench)) {
        printf("memory    %9.1f MiB of the device's %.1f, with recompute %s; %.1f at most\n",
               (double)memory.used / 1048576, (double)memory.total / 1048576, bench->recompute,
               (double)memory.most / 1048576);
    } else if (getrusage(RUSAGE_SELF, &used) == 0) {
        printf("memory    %9.1f MiB planned for the model with recompute %s, %.1f MiB of the whole "
               "process at most\n",
               (double)training_model_bytes(training) / 1048576, bench->recompute,
               (double)used.ru_maxrss / 1024);
    }
}

static const char *const phase_names[TRAINING_PHASES] = {"load", "forward", "backward", "clip",
                                                         "optimizer"};

static void print_figures(const struct bench *bench, const struct training *training,
                          struct figures *figures) {
    char library[32];
    onednn_peak_name(library, sizeof library);
    double step = median(figures->total, figures->count);
    double flops = training_flops(training);
    print_memory(bench, training);
    for (int phase = 0; phase < TRAINING_PHASES; phase++) {
        printf("%-9s %9.2f ms\n", phase_names[phase],
               median(figures->phases[phase], figures->count) * 1e3);
    }
    printf("whole     %9.2f ms, %.0f tokens/s\n", step * 1e3,
           (double)(bench->batch * bench->seq_len) / step);
    if (is_on_host(bench)) {
        double peak = flops / training_peak_seconds(training) / 1e9;
        double reached = flops / step / 1e9;
        printf("products  %9.2f GFLOP a step: %.1f GFLOP/s of the whole step, %.0f%% of the %.1f "
               "that %s\n          reaches with the same products alone\n",
               flops / 1e9, reached, 100 * reached / peak, peak, library);
    } else {
        double computing = median(figures->phases[TRAINING_FORWARD], figures->count) +
                           median(figures->phases[TRAINING_BACKWARD], figures->count);
        printf("products  %9.2f GFLOP a step: %.1f GFLOP/s of forward and backward, copies of "
               "weights\n          and gradients among them\n",
               flops / 1e9, flops / computing / 1e9);
    }
}

static void print_peer(const struct bench *bench, const struct peer *peer,
                       struct figures *figures) {
    double tokens = (double)(bench->batch * bench->seq_len);
    double ours = median(figures->total, figures->count);
    double theirs = median(figures->peer, figures->count);
    printf("\npeer      %s\n", peer->ready);
    printf("          %10s %12s\n", "ms a step", "tokens/s");
    printf("rubato    %10.2f %12.0f\n", ours * 1e3, tokens / ours);
    printf("torch     %10.2f %12.0f\n", theirs * 1e3, tokens / theirs);
    printf("ratio     %10.2f   (above 1: rubato is faster)\n", theirs / ours);
}

static enum status write_json(const struct bench *bench, const struct training *training,
                              struct figures *figures, bool has_peer) {
    char line[1024];
    size_t used;
    struct json json;
    if (bench->json[0] == 0) return STATUS_OK;
    json_begin(&json, line, sizeof line);
    json_text(&json, "bench", "compute");
    json_text(&json, "device", training->config.device->name);
    json_text(&json, "model", bench->model);
    json_text(&json, "compute", is_bf16(bench) ? "bf16" : "f32");
    json_int(&json, "tokens", bench->batch * bench->seq_len);
    double work = model_flops(&training->shape, bench->seq_len);
    json_real(&json, "flops", work * (double)(bench->batch * bench->seq_len), 9);
    for (int phase = 0; phase < TRAINING_PHASES; phase++) {
        json_real(&json, phase_names[phase], median(figures->phases[phase], figures->count), 6);
    }
    json_real(&json, "step", median(figures->total, figures->count), 6);
    if (has_peer) json_real(&json, "peer_step", median(figures->peer, figures->count), 6);
    TRY(json_end(&json, &used));
    FILE *file = fopen(bench->json, "a");
    bool written = file != NULL && fprintf(file, "%s\n", line) > 0;
    if (file != NULL && fclose(file) != 0) written = false;
    if (written) return STATUS_OK;
    log_error("--json %s cannot be written", bench->json);
    return STATUS_IO;
}

static enum status open_device(const struct bench *bench, struct device **device) {
    enum device_kind kind = DEVICE_CPU;
    int index = 0;
    (void)device_name_parse(bench->device, &kind, &index); /* it was checked */
    return device_open(device, kind, index);
}

static enum status run(const struct bench *bench) {
    static struct figures figures; /* large */
    struct training training = {0};
    struct peer peer = {0};
    bool has_peer = bench->peer[0] != '\0';
    struct training_config config = {.model = bench->model,
                                     .vocab = bench->vocab,
                                     .B = bench->batch,
                                     .T = bench->seq_len,
                                     .bf16 = is_bf16(bench),
                                     .recompute = bench->recompute,
                                     .dropout = (float)bench->dropout};
    TRY(open_device(bench, &config.device));
    enum status status = training_open(&training, &config);
    if (status == STATUS_OK && has_peer) {
        status = open_peer(bench, &training, &peer);
    }
    if (status == STATUS_OK) {
        print_job(bench, &training);
        status = measure(bench, &training, has_peer ? &peer : NULL, &figures);
    }
    if (status == STATUS_OK) {
        print_figures(bench, &training, &figures);
        if (has_peer) print_peer(bench, &peer, &figures);
        status = write_json(bench, &training, &figures, has_peer);
    }
    peer_close(&peer);
    training_close(&training);
    device_close(config.device);
    return status;
}

int main(int argc, char **argv) {
    struct bench bench;
    struct options options;
    options_init(&options, table, TABLE_COUNT, &bench);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&options, 1, usage, stdout);
        return EXIT_CODE_OK;
    }
    if (options_parse(&options, 1, argc, argv) != STATUS_OK) {
        return EXIT_CODE_USAGE;
    }
    bench.threads = bench.threads > 0 ? bench.threads : threads_available();
    threads_set((int)bench.threads);
    return (int)status_exit_code(run(&bench));
}
