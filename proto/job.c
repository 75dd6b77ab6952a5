#include "proto/job.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "proto/frame.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SSP_STALENESS_MAX 1000000
#define RECOMPUTE_MAX     1000
#define SEED_MAX          4294967295.0
#define BLOCK_VALUES_MAX  ((double)FRAME_PAYLOAD_MAX / 4.0)
#define PI                3.14159265358979323846

/* ---- checks of text values: false says in why [why_bytes] what is allowed instead ---- */

static bool one_of(const char *text, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(text, names[i]) == 0) return true;
    return false;
}

/* 1 to 9 digits, no sign, no more than `most` -> *value. */
static bool read_number(const char *text, size_t bytes, int64_t most, int64_t *value) {
    int64_t number = 0;
    if (bytes < 1 || bytes > 9) return false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        number = number * 10 + (text[i] - '0');
    }
    if (number > most) return false;
    *value = number;
    return true;
}

static bool check_mode(const char *text, char *why, size_t why_bytes) {
    struct discipline discipline;
    if (job_discipline(text, &discipline) == STATUS_OK) return true;
    snprintf(why, why_bytes, "sync, async, ssp:S with S from 0 to %d", SSP_STALENESS_MAX);
    return false;
}

/* LxCxH: three positive numbers. */
static bool is_model_shape(const char *text) {
    for (int part = 0; part < 3; part++) {
        int64_t number = 0;
        size_t digits = strspn(text, "0123456789");
        if (!read_number(text, digits, 1000000, &number) || number == 0) return false;
        text += digits;
        if (*text != (part < 2 ? 'x' : 0)) return false;
        if (part < 2) text++;
    }
    return true;
}

/* A path: the shape is in a config.json, there or in that folder. */
bool job_model_is_path(const char *text) {
    static const char end[] = ".json";
    size_t bytes = strlen(text);
    if (strchr(text, '/') != NULL) return true;
    return bytes >= sizeof end && strcmp(text + bytes - (sizeof end - 1), end) == 0;
}

/* The form alone: which names there are is the model's to know (worker/model.h). */
static bool check_model(const char *text, char *why, size_t why_bytes) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.";
    static const char *const families[] = {"gpt2:", "llama:"};
    if (job_model_is_path(text)) return true;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const char *name = text + strlen(families[i]);
        if (strncmp(text, families[i], strlen(families[i])) != 0 || *name == 0) continue;
        bool shape_like = *name >= '0' && *name <= '9' && strchr(name, 'x') != NULL;
        if (shape_like ? is_model_shape(name) : name[strspn(name, letters)] == 0) return true;
    }
    snprintf(why, why_bytes,
             "gpt2:NAME or llama:NAME with a size's name such as tiny or 124M, gpt2:LxCxH or "
             "llama:LxCxH with "
             "layers, channels and heads, or the path of a config.json (with a / or .json in it)");
    return false;
}

static bool check_optimizer(const char *text, char *why, size_t why_bytes) {
    static const char *const names[] = {"adamw", "sgd"};
    snprintf(why, why_bytes, "adamw, sgd");
    return one_of(text, names, sizeof names / sizeof names[0]);
}

static bool check_schedule(const char *text, char *why, size_t why_bytes) {
    static const char *const names[] = {"cosine", "linear", "wsd", "constant"};
    snprintf(why, why_bytes, "cosine, linear, wsd, constant");
    return one_of(text, names, sizeof names / sizeof names[0]);
}

static bool check_lr_scale(const char *text, char *why, size_t why_bytes) {
    static const char *const names[] = {"none", "sqrt", "linear"};
    snprintf(why, why_bytes, "none, sqrt, linear");
    return one_of(text, names, sizeof names / sizeof names[0]);
}

static bool check_compute(const char *text, char *why, size_t why_bytes) {
    static const char *const names[] = {"auto", "f32", "bf16"};
    snprintf(why, why_bytes, "auto, f32, bf16");
    return one_of(text, names, sizeof names / sizeof names[0]);
}

static bool check_recompute(const char *text, char *why, size_t why_bytes) {
    int64_t every = 0;
    bool attention = false;
    if (job_recompute(text, &every, &attention) == STATUS_OK) return true;
    snprintf(why, why_bytes, "none, attention, every:N with N from 1 to %d", RECOMPUTE_MAX);
    return false;
}

static bool check_push(const char *text, char *why, size_t why_bytes) {
    static const char *const names[] = {"none", "bf16", "int8"};
    snprintf(why, why_bytes, "none, bf16, int8");
    return one_of(text, names, sizeof names / sizeof names[0]);
}

static bool check_pull(const char *text, char *why, size_t why_bytes) {
    static const char *const names[] = {"bf16", "none"};
    snprintf(why, why_bytes, "bf16, none");
    return one_of(text, names, sizeof names / sizeof names[0]);
}

static bool check_log_level(const char *text, char *why, size_t why_bytes) {
    enum log_level level;
    snprintf(why, why_bytes, "error, warn, info, debug, trace");
    return log_level_parse(text, &level) == STATUS_OK;
}

static bool check_progress(const char *text, char *why, size_t why_bytes) {
    static const char *const names[] = {"auto", "line", "off"};
    snprintf(why, why_bytes, "auto, line, off");
    return one_of(text, names, sizeof names / sizeof names[0]);
}

/* Where to listen or to dial. */
static bool check_address(const char *text, char *why, size_t why_bytes) {
    char host[OPTION_TEXT_MAX];
    char port[8];
    if (*text == 0) return true;
    if (job_split_address(text, host, sizeof host, port, sizeof port) &&
        strspn(port, "0") < strlen(port))
        return true;
    snprintf(why, why_bytes, "host:port with a port from 1 to 65535, an IPv6 host in brackets");
    return false;
}

/* ---- the table: all the fields of struct job, in their order ---- */

#define AT(field) offsetof(struct job, field)

/* AGREED options belong to all programs. */
#define AGREED    true, JOB_SERVER | JOB_WORKER | JOB_LAUNCH
#define ALL       false, JOB_SERVER | JOB_WORKER | JOB_LAUNCH
#define OF_SERVER false, JOB_SERVER | JOB_LAUNCH
#define OF_WORKER false, JOB_WORKER | JOB_LAUNCH
#define OF_MEMBER false, JOB_SERVER | JOB_WORKER

const struct option job_table[] = {
    {"servers", OPTION_INT, "1", 1, 1024, "processes",
     "server processes of the job, the coordinator among them", AGREED, AT(servers), NULL},
    {"workers", OPTION_INT, "1", 1, 1024, "processes", "worker processes of the job", AGREED,
     AT(workers), NULL},
    {"mode", OPTION_TEXT, "sync", 0, 0, "",
     "sync: one update a round, of all workers' gradients; async: each push is an update; ssp:S: "
     "async, but no worker is more than S steps ahead of the slowest",
     AGREED, AT(mode), check_mode},
    {"model", OPTION_TEXT, "gpt2:tiny", 0, 0, "",
     "what is trained: gpt2:tiny (4 layers, 128 channels, 4 heads), gpt2:small (6, 384, 6), "
     "gpt2:124M, 350M, 774M, 1.5B, or gpt2:LxCxH; llama:NAME or llama:LxCxH; or the path of a "
     "config.json of Hugging Face's, or of its folder",
     AGREED, AT(model), check_model},
    {"vocab", OPTION_INT, "0", 0, 16777216, "tokens",
     "size of the vocabulary; 0: what the data's format implies (256 for bytes)", AGREED, AT(vocab),
     NULL},
    {"seq-len", OPTION_INT, "128", 1, 65536, "tokens", "length of one training sequence", AGREED,
     AT(seq_len), NULL},
    {"pad-token", OPTION_INT, "-1", -1, 16777215, "",
     "a token that only fills: where it comes next, nothing is to be predicted; -1: none", AGREED,
     AT(pad_token), NULL},
    {"batch", OPTION_INT, "8", 1, 4096, "sequences",
     "sequences in a worker's batch; a sync update is of workers x accumulate x batch", AGREED,
     AT(batch), NULL},
    {"accumulate", OPTION_INT, "1", 1, 65536, "batches",
     "batches that a worker computes a step, one after the other; it pushes their mean gradient",
     AGREED, AT(accumulate), NULL},
    {"steps", OPTION_INT, "400", 1, 1e9, "steps", "steps that each worker makes", AGREED, AT(steps),
     NULL},
    {"seed", OPTION_INT, "1", 0, SEED_MAX, "", "of the first weights and of the order of the data",
     AGREED, AT(seed), NULL},

    {"optimizer", OPTION_TEXT, "adamw", 0, 0, "", "the servers' optimizer: adamw or sgd", AGREED,
     AT(optimizer), check_optimizer},
    {"schedule", OPTION_TEXT, "cosine", 0, 0, "",
     "learning rate after warm-up: cosine and linear fall to lr x lr-min-ratio at the last step, "
     "wsd stays and then falls so over its last part (--cooldown), constant stays",
     AGREED, AT(schedule), check_schedule},
    {"lr", OPTION_REAL, "0.001", 0, 1000, "", "peak learning rate", AGREED, AT(lr), NULL},
    {"lr-min-ratio", OPTION_REAL, "0.1", 0, 1, "",
     "last learning rate over the peak, where the schedule falls", AGREED, AT(lr_min_ratio), NULL},
    {"lr-scale", OPTION_TEXT, "none", 0, 0, "",
     "the peak learning rate is lr times 1 (none), or the number of workers (linear), or its root "
     "(sqrt)",
     AGREED, AT(lr_scale), check_lr_scale},
    {"warmup", OPTION_INT, "20", 0, 1e9, "steps",
     "steps over which the learning rate rises linearly to its peak", AGREED, AT(warmup), NULL},
    {"cooldown", OPTION_REAL, "0.2", 0, 1, "",
     "wsd: the last part of the steps, in which the learning rate falls", AGREED, AT(cooldown),
     NULL},
    {"beta1", OPTION_REAL, "0.9", 0, 0.999999, "", "adamw: decay of the first moment", AGREED,
     AT(beta1), NULL},
    {"beta2", OPTION_REAL, "0.95", 0, 0.999999, "", "adamw: decay of the second moment", AGREED,
     AT(beta2), NULL},
    {"eps", OPTION_REAL, "1e-8", 0, 1, "", "adamw: added to the denominator", AGREED, AT(eps),
     NULL},
    {"momentum", OPTION_REAL, "0.9", 0, 0.999999, "", "sgd: momentum; 0: none", AGREED,
     AT(momentum), NULL},
    {"weight-decay", OPTION_REAL, "0.1", 0, 100, "",
     "decay of the weights of matrices (vectors do not decay)", AGREED, AT(weight_decay), NULL},
    {"clip", OPTION_REAL, "1.0", 0, 1e9, "",
     "the gradient is scaled down to this global norm where it is longer; 0: never", AGREED,
     AT(clip), NULL},

    {"push", OPTION_TEXT, "bf16", 0, 0, "",
     "how gradients travel: none (f32), bf16, or int8 (a scale for every 128 values)", AGREED,
     AT(push), check_push},
    {"pull", OPTION_TEXT, "bf16", 0, 0, "", "how weights travel back: bf16, or none (f32)", AGREED,
     AT(pull), check_pull},
    {"block-values", OPTION_INT, "262144", 64, BLOCK_VALUES_MAX, "values",
     "size that blocks, the units of push and pull, aim at", AGREED, AT(block_values), NULL},
    {"lease", OPTION_REAL, "5", 0.5, 300, "seconds",
     "silence after which a process counts as lost; every other timer derives from it", AGREED,
     AT(lease), NULL},

    {"listen", OPTION_TEXT, "", 0, 0, "host:port",
     "host:port; makes this server the coordinator, at the address that the others --join",
     OF_SERVER, AT(listen), check_address},
    {"join", OPTION_TEXT, "", 0, 0, "host:port", "host:port of the coordinator", OF_MEMBER,
     AT(join), check_address},
    {"bind", OPTION_TEXT, "", 0, 0, "host:port",
     "host:port where the coordinator listens, if not at --listen (behind address translation)",
     false, JOB_SERVER, AT(bind), check_address},
    {"index", OPTION_INT, "-1", -1, 1023, "",
     "place among the job's servers or workers (a worker's rank decides which data it reads); -1: "
     "any, by order of joining",
     OF_MEMBER, AT(index), NULL},
    {"key-file", OPTION_TEXT, "", 0, 0, "file",
     "file of the job's secret key, made by `rubato keygen`: control connections are TLS 1.3", ALL,
     AT(key_file), NULL},
    {"insecure", OPTION_FLAG, "no", 0, 0, "",
     "allow control connections without a key beyond this machine", ALL, AT(insecure), NULL},
    {"join-timeout", OPTION_REAL, "0", 0, 86400, "seconds",
     "how long to wait until the job is complete; 0: 12 leases", ALL, AT(join_timeout), NULL},
    {"net-devices", OPTION_TEXT, "", 0, 0, "",
     "UCX devices for gradients and weights, such as eth0 or mlx5_0:1; empty: the interface of "
     "the control connection",
     ALL, AT(net_devices), NULL},
    {"log-level", OPTION_TEXT, "info", 0, 0, "",
     "least urgent messages to print: error, warn, info, debug (every step) or trace (every frame)",
     ALL, AT(log_level), check_log_level},
    {"shards", OPTION_INT, "1", 1, 256, "threads",
     "threads of this server, each the owner of a share of the weights", OF_SERVER, AT(shards),
     NULL},
    {"stay", OPTION_FLAG, "no", 0, 0, "", "serve the next job when one ends", OF_SERVER, AT(stay),
     NULL},
    {"data", OPTION_TEXT, "", 0, 0, "file",
     "training data: .bin files of tokens (llm.c's or nanoGPT's), JSONL, or any file as bytes, "
     "also "
     "as .zst; several by commas or a pattern such as 'train_*.bin'",
     OF_WORKER, AT(data), NULL},
    {"val-data", OPTION_TEXT, "", 0, 0, "file",
     "validation data, as --data; empty: a part of --data that is not trained on", OF_WORKER,
     AT(val_data), NULL},
    {"eval-every", OPTION_INT, "50", 0, 1e9, "steps",
     "steps from one validation to the next; 0: only at the end", OF_WORKER, AT(eval_every), NULL},
    {"eval-batches", OPTION_INT, "8", 1, 1e6, "batches", "batches of one validation", OF_WORKER,
     AT(eval_batches), NULL},
    {"threads", OPTION_INT, "0", 0, 1024, "threads",
     "threads that compute; 0: all cores that the process may use", OF_WORKER, AT(threads), NULL},
    {"compute", OPTION_TEXT, "auto", 0, 0, "",
     "number type of the matrix products: f32, bf16 (sums in f32), or auto: bf16 where the chip is "
     "made for it",
     OF_WORKER, AT(compute), check_compute},
    {"recompute", OPTION_TEXT, "none", 0, 0, "",
     "what backward computes again to save memory: none, attention, or every:N (of N layers, only "
     "the first one's input is kept)",
     OF_WORKER, AT(recompute), check_recompute},
    {"init", OPTION_TEXT, "random", 0, 0, "path",
     "first weights, of worker 0: random, or a safetensors file, or a folder with "
     "model.safetensors or its index",
     OF_WORKER, AT(init), NULL},
    {"run-dir", OPTION_TEXT, "", 0, 0, "folder",
     "folder for metrics and the trained model; empty: a new folder under runs/", OF_WORKER,
     AT(run_dir), NULL},
    {"sample-tokens", OPTION_INT, "256", 0, 65536, "tokens",
     "tokens to generate with the trained model at the end; 0: none", OF_WORKER, AT(sample_tokens),
     NULL},
    {"prompt", OPTION_TEXT, "", 0, 0, "", "what the generated text starts with", OF_WORKER,
     AT(prompt), NULL},
    {"tokenizer", OPTION_TEXT, "", 0, 0, "file",
     "vocabulary of a .bin (tokenizer.json or FILE.tiktoken[,PATTERN]), for the generated text and "
     "bits per byte",
     OF_WORKER, AT(tokenizer), NULL},
    {"progress", OPTION_TEXT, "auto", 0, 0, "",
     "progress on standard error: line (whole lines), off, or auto (one live line on a terminal)",
     OF_WORKER, AT(progress), check_progress},
};

const size_t job_table_count = sizeof job_table / sizeof job_table[0];

_Static_assert(sizeof job_table / sizeof job_table[0] <= OPTIONS_MAX, "origins have room for all");

/* ---- timers ---- */

int64_t job_lease_ns(const struct job *job) {
    return (int64_t)(job->lease * (double)CLOCK_S);
}

int64_t job_heartbeat_ns(const struct job *job) {
    return job_lease_ns(job) / 10;
}

int64_t job_join_timeout_ns(const struct job *job) {
    if (job->join_timeout > 0) return (int64_t)(job->join_timeout * (double)CLOCK_S);
    return 12 * job_lease_ns(job);
}

/* ---- what the texts mean ---- */

enum status job_discipline(const char *mode, struct discipline *discipline) {
    static const char ssp[] = "ssp:";
    if (strcmp(mode, "sync") == 0) {
        *discipline = (struct discipline){.local_steps = 1, .staleness = 0, .quorum = 0};
        return STATUS_OK;
    }
    if (strcmp(mode, "async") == 0) {
        *discipline = (struct discipline){.local_steps = 1, .staleness = -1, .quorum = 1};
        return STATUS_OK;
    }
    if (strncmp(mode, ssp, sizeof ssp - 1) == 0) {
        const char *number = mode + sizeof ssp - 1;
        int64_t staleness = 0;
        if (read_number(number, strlen(number), SSP_STALENESS_MAX, &staleness)) {
            *discipline =
                (struct discipline){.local_steps = 1, .staleness = staleness, .quorum = 1};
            return STATUS_OK;
        }
    }
    return STATUS_INVALID;
}

double job_peak_rate(const struct job *job) {
    if (strcmp(job->lr_scale, "sqrt") == 0) return job->lr * sqrt((double)job->workers);
    if (strcmp(job->lr_scale, "linear") == 0) return job->lr * (double)job->workers;
    return job->lr;
}

double job_learning_rate(const struct job *job, int64_t step) {
    ASSERT_OP(step, >=, 0);
    double peak = job_peak_rate(job);
    double least = peak * job->lr_min_ratio;
    double start = (double)job->warmup; /* of the fall */
    double end = (double)job->steps;
    if (step < job->warmup) return peak * (double)(step + 1) / (double)job->warmup;
    if (strcmp(job->schedule, "constant") == 0) return peak;
    if (strcmp(job->schedule, "wsd") == 0) start = fmax(start, end - job->cooldown * end);
    if ((double)step >= end) return least;
    if ((double)step <= start) return peak;
    double progress = ((double)step - start) / (end - start);
    if (strcmp(job->schedule, "cosine") == 0)
        return least + 0.5 * (peak - least) * (1.0 + cos(PI * progress));
    return peak - (peak - least) * progress;
}

enum status job_recompute(const char *text, int64_t *every, bool *attention) {
    static const char prefix[] = "every:";
    int64_t number = 0;
    if (strncmp(text, prefix, sizeof prefix - 1) == 0) {
        const char *digits = text + sizeof prefix - 1;
        if (!read_number(digits, strlen(digits), RECOMPUTE_MAX, &number) || number == 0)
            return STATUS_INVALID;
    } else if (strcmp(text, "none") != 0 && strcmp(text, "attention") != 0) {
        return STATUS_INVALID;
    }
    *every = number;
    *attention = strcmp(text, "attention") == 0;
    return STATUS_OK;
}

int64_t job_step_tokens(const struct job *job) {
    return job->accumulate * job->batch * job->seq_len;
}

bool job_split_address(const char *address, char *host, size_t host_bytes, char *port,
                       size_t port_bytes) {
    const char *host_start = address;
    const char *host_end = strrchr(address, ':');
    const char *allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    int64_t number = 0;
    if (host_end == NULL) return false;
    const char *port_start = host_end + 1;
    size_t port_length = strlen(port_start);
    if (port_length > 5 || !read_number(port_start, port_length, 65535, &number)) return false;
    if (*address == '[') {
        host_start++;
        host_end--;
        if (host_end <= host_start || *host_end != ']') return false;
        /* %eth0 names the interface of a link-local address. */
        allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%";
    }
    size_t host_length = (size_t)(host_end - host_start);
    if (host_length == 0 || strspn(host_start, allowed) < host_length) return false;
    if (host_length >= host_bytes || port_length >= port_bytes) return false;
    memcpy(host, host_start, host_length);
    host[host_length] = 0;
    memcpy(port, port_start, port_length + 1);
    return true;
}
