/* job_table.c - the one table of all options, and what their texts may be. */
#include "base/device_name.h"
#include "base/log.h"
#include "proto/codec_spec.h"
#include "proto/discipline.h"
#include "proto/frame.h"
#include "proto/job.h"
#include "proto/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX       1000000
#define SEED_MAX         4294967295.0
#define BLOCK_VALUES_MAX ((double)FRAME_PAYLOAD_MAX / 4.0)

/* ---- checks of text values: false says in why [why_bytes] what is allowed instead ---- */

/* Is the text one of those in "one, two, three"? */
static bool choice(const char *text, const char *allowed, char *why, size_t why_bytes) {
    size_t bytes = strlen(text);
    (void)snprintf(why, why_bytes, "%s", allowed);
    for (const char *name = allowed; bytes > 0 && *name != 0;) {
        size_t length = strcspn(name, ",");
        if (length == bytes && memcmp(name, text, bytes) == 0) return true;
        name += length;
        name += strspn(name, ", ");
    }
    return false;
}

/* A choice as a check function of its own. */
#define CHOICE(name, allowed)                                                                      \
    static bool name(const char *text, char *why, size_t why_bytes) {                              \
        return choice(text, allowed, why, why_bytes);                                              \
    }

/* `worker:` before a name, or none. */
static bool check_optimizer(const char *text, char *why, size_t why_bytes) {
    static const char names[] = "adamw, sgd, nesterov, adagrad, lion, lamb, adafactor, muon";
    const char *own = strncmp(text, "worker:", 7) == 0 ? text + 7 : NULL;
    if (choice(own != NULL ? own : text, names, why, why_bytes)) return true;
    if (own != NULL && strcmp(own, "1bit-adam") == 0) return true;
    (void)snprintf(why, why_bytes, "%s; worker: before one of them, or worker:1bit-adam", names);
    return false;
}

CHOICE(check_outer, "auto, average, sgd, nesterov, adamw, adagrad, lion")
CHOICE(check_moments, "f32, bf16, int8")
CHOICE(check_late, "auto, drop, join")
CHOICE(check_staleness_scale, "none, inverse, exp")
CHOICE(check_delay_base, "copies, moments")
CHOICE(check_inner_state, "keep, reset")
CHOICE(check_schedule, "cosine, linear, wsd, constant")
CHOICE(check_lr_scale, "none, sqrt, linear")
CHOICE(check_compute, "auto, f32, bf16, tf32")

/* Whether they are there is seen where they are opened. */
static bool check_device(const char *text, char *why, size_t why_bytes) {
    struct device_names names;
    (void)snprintf(why, why_bytes, "cpu, cuda, cuda:N, cuda:N,M,... (up to %d), or cpu:N",
                   DEVICE_NAMES_MAX);
    return device_names_parse(text, &names);
}

CHOICE(check_residual, "f32, bf16, int8")
CHOICE(check_pull, "bf16, none, delta-int8, delta-int4")
CHOICE(check_progress, "auto, line, off")
CHOICE(check_channel, "auto, shm, ucx, tls")
CHOICE(check_poll, "sleep, adaptive, busy")
CHOICE(check_wire, "auto, plain, auth, encrypt")

static bool check_mode(const char *text, char *why, size_t why_bytes) {
    struct discipline discipline;
    if (discipline_of_mode(text, 1, &discipline) == STATUS_OK) return true;
    (void)snprintf(why, why_bytes,
                   "sync, ssp:S, async, local:H or diloco:H, with S from 0 and H from 1");
    return false;
}

/* `word`, or "auto", or a number. */
static bool auto_word_or_number(const char *text, const char *word) {
    int64_t number = 0;
    return strcmp(text, "auto") == 0 || strcmp(text, word) == 0 ||
           number_of(text, NUMBER_MAX, &number);
}

static bool check_staleness(const char *text, char *why, size_t why_bytes) {
    (void)snprintf(why, why_bytes, "auto, any, or a number of reports");
    return auto_word_or_number(text, "any");
}

static bool check_quorum(const char *text, char *why, size_t why_bytes) {
    (void)snprintf(why, why_bytes, "auto, all, or a number of workers");
    return auto_word_or_number(text, "all");
}

static bool check_grace(const char *text, char *why, size_t why_bytes) {
    (void)snprintf(why, why_bytes, "auto, or milliseconds");
    return auto_word_or_number(text, "auto");
}

static bool check_factors(const char *text, char *why, size_t why_bytes) {
    double factor = 0;
    (void)snprintf(why, why_bytes, "PATTERN=FACTOR,PATTERN=FACTOR with factors from 0");
    return plan_factor(text, "", &factor) == STATUS_OK;
}

/* Shared memory is not among them: UCX cannot tell there that a peer has died. rc_verbs by itself
 * lacks what wires it up; rc_v has it. */
static bool check_tls(const char *text, char *why, size_t why_bytes) {
    static const char allowed[] = "tcp, ib, rc, rc_v, rc_x, dc, dc_x, ud, ud_v, ud_x, self";
    for (const char *name = text; *name != 0;) {
        char one[16];
        size_t length = strcspn(name, ",");
        if (length >= sizeof one) length = sizeof one - 1;
        memcpy(one, name, length);
        one[length] = 0;
        if (!choice(one, allowed, why, why_bytes)) return false;
        name += length;
        if (*name == ',' && *++name == 0) return false;
    }
    return true;
}

/* none, or a number with kbit, mbit or gbit. */
static bool check_link(const char *text, char *why, size_t why_bytes) {
    int64_t number = 0;
    size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits;
    (void)snprintf(why, why_bytes, "none, or a rate such as 100mbit or 1gbit");
    if (strcmp(text, "none") == 0) return true;
    return number_read(text, digits, NUMBER_MAX, &number) && number > 0 &&
           (strcmp(unit, "kbit") == 0 || strcmp(unit, "mbit") == 0 || strcmp(unit, "gbit") == 0);
}

/* LxCxH or LxCxHxK: three or four positive numbers. */
static bool is_model_shape(const char *text) {
    for (int part = 0; part < 4; part++) {
        int64_t number = 0;
        size_t digits = strspn(text, "0123456789");
        if (!number_read(text, digits, NUMBER_MAX, &number) || number == 0) return false;
        text += digits;
        if (*text == 0) return part >= 2;
        if (*text++ != 'x') return false;
    }
    return false;
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
             "llama:LxCxH[xK] with layers, channels, heads and key heads, or the path of a "
             "config.json (with a / or .json in it)");
    return false;
}

static bool check_push(const char *text, char *why, size_t why_bytes) {
    struct codec_spec spec;
    return codec_parse(text, &spec, why, why_bytes);
}

static bool check_push_policy(const char *text, char *why, size_t why_bytes) {
    (void)snprintf(why, why_bytes, "auto, all, or a file");
    return *text != 0;
}

static bool check_recompute(const char *text, char *why, size_t why_bytes) {
    int64_t every = 0;
    bool attention = false;
    if (job_recompute(text, &every, &attention) == STATUS_OK) return true;
    snprintf(why, why_bytes, "none, attention, every:N with N from 1 to 1000");
    return false;
}

static bool check_profile_steps(const char *text, char *why, size_t why_bytes) {
    int64_t first = 0, last = 0;
    if (job_profile_steps(text, &first, &last) == STATUS_OK) return true;
    (void)snprintf(why, why_bytes, "A:B with steps 1 <= A <= B <= 999999999, or A, one step");
    return false;
}

static bool check_log_level(const char *text, char *why, size_t why_bytes) {
    enum log_level level;
    snprintf(why, why_bytes, "error, warn, info, debug, trace");
    return log_level_parse(text, &level) == STATUS_OK;
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
     "async, but no worker is more than S steps ahead of the slowest; local:H and diloco:H: "
     "workers "
     "make H steps of their own, then the servers average, or step on, what came of them",
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

    {"dropout", OPTION_REAL, "0", 0, 0.95, "", "part of the activations that training drops",
     AGREED, AT(dropout), NULL},

    {"local-steps", OPTION_INT, "0", 0, NUMBER_MAX, "steps",
     "local modes: steps of a worker between two reports; 0: as --mode says", AGREED,
     AT(local_steps), NULL},
    {"staleness", OPTION_TEXT, "auto", 0, 0, "reports",
     "reports that a worker may be ahead of the slowest: 0 (rounds), a number, any, or auto: as "
     "--mode says",
     AGREED, AT(staleness), check_staleness},
    {"quorum", OPTION_TEXT, "auto", 0, 0, "workers",
     "workers whose reports close a round: a number, all, or auto: as --mode says", AGREED,
     AT(quorum), check_quorum},
    {"backup-workers", OPTION_INT, "0", 0, 1023, "workers",
     "a round closes when all but so many have reported", AGREED, AT(backup_workers), NULL},
    {"grace", OPTION_TEXT, "0", 0, 0, "ms",
     "time for the others once the quorum is there: milliseconds, or auto: by the median and "
     "spread of arrivals",
     AGREED, AT(grace), check_grace},
    {"late", OPTION_TEXT, "auto", 0, 0, "",
     "a report that missed its round: drop it, join it to the next, or auto: join after local "
     "steps, else drop",
     AGREED, AT(late), check_late},
    {"staleness-scale", OPTION_TEXT, "none", 0, 0, "",
     "modes with staleness: the rate of a push that is staler than equal workers' are: none (as "
     "any), inverse or exp (smaller)",
     AGREED, AT(staleness_scale), check_staleness_scale},
    {"max-staleness", OPTION_INT, "-1", -1, 1e9, "updates",
     "modes with staleness: a push that is staler is dropped; -1: never", AGREED, AT(max_staleness),
     NULL},
    {"delay-comp", OPTION_REAL, "0", 0, 100, "",
     "modes with staleness: lambda of delay compensation (DC-ASGD); 0: off", AGREED, AT(delay_comp),
     NULL},
    {"delay-base", OPTION_TEXT, "moments", 0, 0, "",
     "delay compensation from the weights that each worker has (copies: 4 bytes a value and "
     "worker) or an estimate from the optimizer's moments (no memory)",
     AGREED, AT(delay_base), check_delay_base},
    {"sync-warmup", OPTION_INT, "-1", -1, 1e9, "steps",
     "modes with staleness: so many first steps are sync; -1: a quarter of them", AGREED,
     AT(sync_warmup), NULL},
    {"push-momentum", OPTION_REAL, "0", 0, 0.999999, "",
     "modes with staleness: beta1 or momentum of the optimizer, which steps on each push; "
     "staleness "
     "acts as momentum itself",
     AGREED, AT(push_momentum), NULL},
    {"push-beta2", OPTION_REAL, "0.997", 0, 0.999999, "",
     "modes with staleness: beta2 of the optimizer, which steps on each push; 0: beta2^(1/workers)",
     AGREED, AT(push_beta2), NULL},
    {"outer", OPTION_TEXT, "auto", 0, 0, "",
     "local modes: the servers' optimizer: average, sgd, nesterov, adamw, adagrad, lion, or auto: "
     "average for local:H, nesterov for diloco:H",
     AGREED, AT(outer), check_outer},
    {"outer-lr", OPTION_REAL, "0", 0, 1000, "",
     "local modes: the servers' learning rate; 0: the optimizer's usual one (average and sgd 1, "
     "nesterov 0.7, others 0.001)",
     AGREED, AT(outer_lr), NULL},
    {"outer-momentum", OPTION_REAL, "0.9", 0, 0.999999, "",
     "local modes: momentum of outer sgd and nesterov", AGREED, AT(outer_momentum), NULL},
    {"inner-state", OPTION_TEXT, "keep", 0, 0, "",
     "local modes: keep or reset the workers' optimizer state when new weights come", AGREED,
     AT(inner_state), check_inner_state},
    {"fragments", OPTION_INT, "1", 1, 4096, "",
     "local modes: the model reports in so many parts, one after the other; divides the local "
     "steps",
     AGREED, AT(fragments), NULL},
    {"overlap", OPTION_INT, "0", 0, NUMBER_MAX, "steps",
     "local modes: steps made between sending a report and installing its answer", AGREED,
     AT(overlap), NULL},
    {"mix", OPTION_REAL, "0", 0, 0.999, "",
     "local modes: part of its own weights that a worker keeps when it installs new ones", AGREED,
     AT(mix), NULL},
    {"adapt-steps", OPTION_FLAG, "no", 0, 0, "",
     "local modes: each worker's steps between reports follow its speed, so that all report at the "
     "same time",
     AGREED, AT(adapt_steps), NULL},

    {"optimizer", OPTION_TEXT, "adamw", 0, 0, "",
     "adamw, sgd, nesterov, adagrad, lion, lamb, adafactor or muon: the servers' optimizer; the "
     "workers' own in local modes. worker:NAME, worker:1bit-adam: each worker steps a replica, and "
     "servers send the mean gradient, by --push's codec, instead of weights",
     AGREED, AT(optimizer), check_optimizer},
    {"moments", OPTION_TEXT, "f32", 0, 0, "",
     "how the optimizer's moments are kept: f32, bf16, or int8 (a scale a block of values)", AGREED,
     AT(moments), check_moments},
    {"rates", OPTION_TEXT, "", 0, 0, "",
     "factors of tensors' learning rates, PATTERN=FACTOR,...; the first pattern that fits counts; "
     "0 freezes, such as '*.wte.weight=0'",
     AGREED, AT(rates), check_factors},
    {"decays", OPTION_TEXT, "", 0, 0, "",
     "factors of tensors' weight decay, likewise, such as '*.wpe.weight=0'", AGREED, AT(decays),
     check_factors},
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
    {"beta1", OPTION_REAL, "0.9", 0, 0.999999, "", "adamw, lion, lamb: decay of the first moment",
     AGREED, AT(beta1), NULL},
    {"beta2", OPTION_REAL, "0.95", 0, 0.999999, "", "adamw, lion, lamb: decay of the second moment",
     AGREED, AT(beta2), NULL},
    {"eps", OPTION_REAL, "1e-8", 0, 1, "", "adamw: added to the denominator", AGREED, AT(eps),
     NULL},
    {"momentum", OPTION_REAL, "0.9", 0, 0.999999, "", "sgd, nesterov, muon: momentum; 0: none",
     AGREED, AT(momentum), NULL},
    {"weight-decay", OPTION_REAL, "0.1", 0, 100, "",
     "decay of the weights of matrices (vectors do not decay)", AGREED, AT(weight_decay), NULL},
    {"freeze-v-after", OPTION_INT, "0", 0, 1e9, "steps",
     "adamw: the second moment stays as it is after so many updates of a block; 0: never", AGREED,
     AT(freeze_v_after), NULL},
    {"clip", OPTION_REAL, "1.0", 0, 1e9, "",
     "the gradient is scaled down to this global norm where it is longer; 0: never", AGREED,
     AT(clip), NULL},

    {"push", OPTION_TEXT, "bf16", 0, 0, "",
     "how gradients travel: none (f32), bf16, fp16, int8, fp8[:e5m2], int4[:sr,had], onebit, "
     "topk:PART[,global], randk:PART, powersgd:RANK[,shared], qsgd, terngrad, natural or signsgd, "
     "each with error feedback by ,ef or ,ef=loco and packed by +zstd; or fast, balanced, thin, "
     "wan "
     "(docs/COMPRESSION.md)",
     AGREED, AT(push), check_push},
    {"push-policy", OPTION_TEXT, "auto", 0, 0, "",
     "which blocks travel so: all; auto: vectors and small blocks go as bf16 where --push has less "
     "than 8 bits; or a file of lines PATTERN CODEC",
     AGREED, AT(push_policy), check_push_policy},
    {"residual", OPTION_TEXT, "f32", 0, 0, "",
     "in which type error feedback keeps what was held back: f32, bf16 or int8", AGREED,
     AT(residual), check_residual},
    {"dense-warmup", OPTION_INT, "-1", -1, 1e9, "pushes",
     "topk, powersgd and onebit: so many pushes go as bf16 at first; -1: 2 % of all, and 100 at "
     "least",
     AGREED, AT(dense_warmup), NULL},
    {"density-schedule", OPTION_INT, "-1", -1, 1e9, "pushes",
     "topk: then its density falls from 1/4 in steps over so many pushes; -1: as many as before",
     AGREED, AT(density_schedule), NULL},
    {"pull", OPTION_TEXT, "bf16", 0, 0, "",
     "how weights travel back: bf16, none (f32), delta-int8 or delta-int4 (differences)", AGREED,
     AT(pull), check_pull},
    {"wire", OPTION_TEXT, "auto", 0, 0, "",
     "--channel tls: how frames are protected on their way: encrypt, auth (in the clear, but "
     "nobody can change them), plain (not at all), or auto: encrypt if the job has a key, else "
     "plain",
     AGREED, AT(wire), check_wire},
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
    {"channel", OPTION_TEXT, "auto", 0, 0, "",
     "how gradients and weights travel: shm (memory shared with processes of this host), ucx (the "
     "network), auto (shm to those on this host, ucx to the others), or tls (TCP protected by the "
     "job's key, see --wire); tls must be given to every process",
     ALL, AT(channel), check_channel},
    {"net-devices", OPTION_TEXT, "", 0, 0, "",
     "UCX devices for gradients and weights, such as eth0 or mlx5_0:1; empty: the interface of "
     "the control connection",
     ALL, AT(net_devices), NULL},
    {"tls", OPTION_TEXT, "", 0, 0, "",
     "UCX's name for transports, not encryption: tcp, rc (RDMA, by the RDMA device of the control "
     "connection's interface) or others, by commas; empty: tcp, or ib for RDMA devices that "
     "--net-devices names",
     ALL, AT(tls), check_tls},
    {"poll", OPTION_TEXT, "sleep", 0, 0, "",
     "what the threads of the data channels do when nothing is there: sleep, adaptive (look again "
     "for 50 us, then sleep), or busy (look again and again, which takes a core each)",
     ALL, AT(poll), check_poll},
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
    {"device", OPTION_TEXT, "cpu", 0, 0, "",
     "what computes: cpu, cuda (all CUDA devices of the machine), cuda:N (number N, from 0) or "
     "cuda:N,M,...; several share the batch; cpu:N, as many on the host",
     OF_WORKER, AT(device), check_device},
    {"compute", OPTION_TEXT, "auto", 0, 0, "",
     "number type of the matrix products: f32, bf16 (sums in f32), tf32 (CUDA: of f32 operands 10 "
     "bits of the mantissa are used), or auto: bf16 where the chip is made for it",
     OF_WORKER, AT(compute), check_compute},
    {"peak-tflops", OPTION_REAL, "0", 0, 1e6, "TFLOP/s",
     "what the matrix products of one device reach at most, which mfu in the metrics is measured "
     "against; 0: by the data sheet of the card, where it is known, else there is no mfu",
     OF_WORKER, AT(peak_tflops), NULL},
    {"profile-steps", OPTION_TEXT, "", 0, 0, "steps",
     "CUDA devices: tell a profiler to record from the start of step A to the end of step B, given "
     "as A:B (nsys profile --capture-range=cudaProfilerApi); empty: nothing",
     OF_WORKER, AT(profile_steps), check_profile_steps},
    {"recompute", OPTION_TEXT, "none", 0, 0, "",
     "what backward computes again to save memory: none, attention, or every:N (of N layers, only "
     "the first one's input is kept)",
     OF_WORKER, AT(recompute), check_recompute},
    {"accumulate-apart", OPTION_FLAG, "no", 0, 0, "",
     "each of --accumulate's batches has its gradient computed by itself, and added when it is "
     "complete: the bits that as many devices with a batch each compute together, for the memory "
     "of one more gradient",
     OF_WORKER, AT(accumulate_apart), NULL},
    {"push-overlap", OPTION_FLAG, "yes", 0, 0, "",
     "modes that push gradients: each block leaves during backward, as soon as its gradient is "
     "final; no: all of them when backward is done; the same bits",
     OF_WORKER, AT(push_overlap), NULL},
    {"host-encode", OPTION_FLAG, "no", 0, 0, "",
     "CUDA devices: what is pushed is copied to the host and encoded there: the same bits, and the "
     "device keeps the memory that encoders would take",
     OF_WORKER, AT(host_encode), NULL},
    {"forward-overlap", OPTION_FLAG, "yes", 0, 0, "",
     "rounds of all workers, where servers step: the next step starts when the first layers' "
     "weights are back, and the others' come meanwhile; no: when all are; the same bits",
     OF_WORKER, AT(forward_overlap), NULL},
    {"init", OPTION_TEXT, "random", 0, 0, "path",
     "first weights, of worker 0: random, or a safetensors file, or a folder with "
     "model.safetensors or its index",
     OF_WORKER, AT(init), NULL},
    {"cpus", OPTION_TEXT, "", 0, 0, "cores",
     "cores that this process is confined to, such as 0-3,8, node:0 or package:1 (memory nodes and "
     "sockets, by hwloc); empty: all that it may use",
     false, JOB_SERVER | JOB_WORKER, AT(cpus), NULL},
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
    {"link", OPTION_TEXT, "none", 0, 0, "",
     "pace this process's data channels, each direction, to a rate such as 100mbit; none: do not",
     ALL, AT(link), check_link},
    {"slow", OPTION_REAL, "1", 1, 1000, "times",
     "for tests: each step of this worker takes so many times as long", false, JOB_WORKER, AT(slow),
     NULL},
    {"leave-after", OPTION_INT, "0", 0, 1e9, "steps",
     "this worker leaves the job after so many steps; 0: it stays", false, JOB_WORKER,
     AT(leave_after), NULL},
};

const size_t job_table_count = sizeof job_table / sizeof job_table[0];

_Static_assert(sizeof job_table / sizeof job_table[0] <= OPTIONS_MAX, "origins have room for all");
