#include "worker/report.h"

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIVE_EVERY_NS (CLOCK_S / 5)
#define LINE_EVERY_NS (CLOCK_S / 2)
#define SLOW_EVERY_NS (10 * CLOCK_S)

static enum status make_folder(struct report *report, bool wanted) {
    char stamp[64];
    time_t now = time(NULL);
    struct tm parts;
    if (report->job.run_dir[0] != '\0') {
        (void)snprintf(report->folder, sizeof report->folder, "%s", report->job.run_dir);
    } else if (wanted) {
        (void)localtime_r(&now, &parts);
        (void)strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &parts);
        (void)snprintf(report->folder, sizeof report->folder, "runs/%s-%ld", stamp, (long)getpid());
    } else {
        return STATUS_OK;
    }
    return files_make_folder(report->folder);
}

static FILE *open_file(const struct report *report, const char *name) {
    char path[1024];
    if (files_join(path, sizeof path, report->folder, name) != STATUS_OK) {
        return NULL;
    }
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        log_error("cannot write %s: %s", path, strerror(errno));
    }
    return file;
}

static enum status save_options(const struct report *report, const struct options *options) {
    FILE *saved = open_file(report, "options.conf");
    if (saved == NULL) {
        return STATUS_IO;
    }
    options_print_config(options, JOB_WORKER, saved);
    (void)fclose(saved);
    return STATUS_OK;
}

static enum status open_metrics(struct report *report) {
    (void)snprintf(report->metrics_name, sizeof report->metrics_name, "metrics.jsonl");
    if (report->rank != 0) {
        (void)snprintf(report->metrics_name, sizeof report->metrics_name, "metrics.rank%u.jsonl",
                       report->rank);
    }
    report->metrics = open_file(report, report->metrics_name);
    if (report->metrics == NULL) {
        return STATUS_IO;
    }
    (void)setvbuf(report->metrics, NULL, _IOLBF, 1 << 13);
    return STATUS_OK;
}

enum status report_open(struct report *report, const struct options *options, uint32_t rank,
                        bool bytes) {
    const struct job *job = options->config;
    *report =
        (struct report){.job = *job, .rank = rank, .bytes = bytes, .started_ns = clock_now_ns()};
    bool terminal = isatty(STDERR_FILENO) == 1;
    bool quiet = strcmp(job->progress, "off") == 0 || rank != 0;
    report->line = !quiet && (strcmp(job->progress, "line") == 0 || !terminal);
    report->live = !quiet && !report->line;
    TRY(make_folder(report, rank == 0));
    if (report->folder[0] != '\0') {
        TRY(open_metrics(report));
    }
    return rank == 0 ? save_options(report, options) : STATUS_OK;
}

void report_mode(struct report *report, const char *mode) {
    (void)snprintf(report->job.mode, sizeof report->job.mode, "%s", mode);
}

enum status report_take_over(struct report *report, const struct options *options) {
    if (report->rank == 0) {
        return STATUS_OK;
    }
    if (report->folder[0] == '\0') {
        TRY(make_folder(report, true));
        TRY(open_metrics(report));
    }
    return save_options(report, options);
}

void report_close(struct report *report) {
    if (report->line_open) {
        fputc('\n', stderr);
    }
    if (report->metrics != NULL) {
        (void)fclose(report->metrics);
    }
    *report = (struct report){0};
}

double report_push_ratio(const struct exchange_counters *counters) {
    return counters->pushed_bytes > 0
               ? (double)counters->pushed_values * 4 / (double)counters->pushed_bytes
               : 1;
}

double report_staleness(const struct exchange_counters *counters) {
    return counters->pushes_answered > 0
               ? (double)counters->staleness_sum / (double)counters->pushes_answered
               : 0;
}

static double tokens_a_second(const struct report *report, const struct report_step *step,
                              int64_t now_ns) {
    double seconds = (double)(now_ns - report->started_ns) / (double)CLOCK_S;
    return seconds > 0 ? (double)step->job_tokens / seconds : 0;
}

static double milliseconds(int64_t ns) {
    return (double)ns / (double)CLOCK_MS;
}

/* A point of the step, which it may not have. */
static double milliseconds_to(int64_t ns) {
    return ns >= 0 ? milliseconds(ns) : NAN;
}

/* With 9 digits, so that points of a step may be compared. */
static void write_phases(struct json *json, const struct report_step *step, int64_t codec_ns) {
    json_open_object(json, "ms");
    json_real(json, "forward", milliseconds(step->forward_ns), 9);
    json_real(json, "backward", milliseconds(step->backward_ns), 9);
    json_real(json, "wait", milliseconds(step->wait_ns), 9);
    json_real(json, "forward_wait", milliseconds(step->forward_wait_ns), 9);
    json_real(json, "first_push", milliseconds_to(step->first_push_ns), 9);
    json_real(json, "last_push", milliseconds_to(step->last_push_ns), 9);
    json_real(json, "codec", milliseconds(codec_ns), 5);
    json_close_object(json);
}

/* What error feedback holds back of the step's pushes, over their gradients' norm. */
static double residual_norm(const struct exchange_counters *now,
                            const struct exchange_counters *before) {
    double gradient = now->gradient_square_sum - before->gradient_square_sum;
    double residual = now->residual_square_sum - before->residual_square_sum;
    return gradient > 0 && residual > 0 ? sqrt(residual / gradient) : 0;
}

/* The last line: what the run came to. */
static void write_result(const struct report *report, const struct report_step *last, double rate) {
    char text[1024];
    size_t bytes = 0;
    struct json json;
    json_begin(&json, text, sizeof text);
    json_text(&json, "schema", "rubato.result/1");
    json_int(&json, "steps", report->job.steps);
    json_real(&json, "val_loss", last->val_loss, 9);
    json_real(&json, "bytes_a_token", last->bytes_a_token, 7);
    json_int(&json, "tokens", (int64_t)last->job_tokens);
    json_real(&json, "tok_s", rate, 6);
    json_text(&json, "mode", report->job.mode);
    json_text(&json, "push", report->job.push);
    json_text(&json, "pull", report->job.pull);
    json_int(&json, "push_bytes", (int64_t)last->counters.pushed_bytes);
    json_int(&json, "pull_bytes", (int64_t)last->counters.pulled_bytes);
    json_real(&json, "push_ratio", report_push_ratio(&last->counters), 5);
    if (json_end(&json, &bytes) == STATUS_OK) {
        (void)fprintf(report->metrics, "%s\n", text);
    }
}

static void write_device(struct json *json, const struct report_step *step) {
    if (step->device_bytes_most > 0) {
        json_int(json, "device_bytes", (int64_t)step->device_bytes);
        json_int(json, "device_bytes_most", (int64_t)step->device_bytes_most);
    }
    if (step->reading.memory_total > 0) {
        json_int(json, "device_memory_used", (int64_t)step->reading.memory_used);
        json_int(json, "device_utilisation", step->reading.utilisation);
        json_int(json, "device_celsius", step->reading.temperature);
    }
}

static void write_metrics(struct report *report, const struct report_step *step, int64_t now_ns) {
    char text[2048];
    size_t bytes = 0;
    struct json json;
    const struct exchange_counters *now = &step->counters;
    const struct exchange_counters *before = &report->before;
    uint64_t answered = now->pushes_answered - before->pushes_answered;
    json_begin(&json, text, sizeof text);
    json_text(&json, "schema", "rubato.step/1");
    json_int(&json, "step", step->step);
    json_real(&json, "seconds", (double)(now_ns - report->started_ns) / (double)CLOCK_S, 6);
    json_real(&json, "loss", (double)step->loss, 7);
    json_real(&json, "val_loss", step->val_loss, 7);
    json_real(&json, "lr", step->lr, 6);
    json_int(&json, "tokens", (int64_t)step->job_tokens);
    json_real(&json, "tok_s", tokens_a_second(report, step, now_ns), 6);
    if (step->mfu > 0) {
        json_real(&json, "mfu", step->mfu, 4);
    }
    write_phases(&json, step, now->codec_ns - before->codec_ns);
    json_int(&json, "push_bytes", (int64_t)(now->pushed_bytes - before->pushed_bytes));
    json_int(&json, "pull_bytes", (int64_t)(now->pulled_bytes - before->pulled_bytes));
    json_real(&json, "push_ratio", report_push_ratio(now), 5);
    json_int(&json, "codec_bytes", (int64_t)now->codec_bytes);
    json_real(&json, "residual_norm", residual_norm(now, before), 5);
    json_real(&json, "staleness",
              answered > 0 ? (double)(now->staleness_sum - before->staleness_sum) / (double)answered
                           : 0,
              5);
    json_real(&json, "weight", step->weight, 5);
    json_int(&json, "local_steps", step->local_steps);
    json_int(&json, "round", step->round);
    json_int(&json, "dropped", (int64_t)now->dropped);
    json_int(&json, "resent", (int64_t)now->resent);
    write_device(&json, step);
    report->before = *now;
    if (json_end(&json, &bytes) == STATUS_OK) {
        (void)fprintf(report->metrics, "%s\n", text);
    }
}

static void format_count(double value, char *text, size_t bytes) {
    if (value >= 1e6) {
        (void)snprintf(text, bytes, "%.2fM", value / 1e6);
    } else if (value >= 1e3) {
        (void)snprintf(text, bytes, "%.1fk", value / 1e3);
    } else {
        (void)snprintf(text, bytes, "%.0f", value);
    }
}

static void format_duration(double seconds, char *text, size_t bytes) {
    int64_t total = (int64_t)(seconds + 0.5);
    if (total >= 3600) {
        (void)snprintf(text, bytes, "%" PRId64 "h%02" PRId64 "m", total / 3600, total / 60 % 60);
    } else {
        (void)snprintf(text, bytes, "%" PRId64 ":%02" PRId64, total / 60, total % 60);
    }
}

static void print_progress(struct report *report, const struct report_step *step, int64_t now_ns) {
    char rate[32];
    char left[32];
    char val[32] = "-";
    char mfu[32] = "";
    char line[256];
    double elapsed = (double)(now_ns - report->started_ns) / (double)CLOCK_S;
    double a_step = elapsed / (double)step->step;
    format_count(tokens_a_second(report, step, now_ns), rate, sizeof rate);
    format_duration(a_step * (double)(report->job.steps - step->step), left, sizeof left);
    if (isfinite(step->val_loss)) {
        (void)snprintf(val, sizeof val, "%.3f", step->val_loss);
    }
    if (report->shared_ns > 0) {
        (void)snprintf(mfu, sizeof mfu, " | mfu %.1f%%",
                       100 * report->flops_share / report->shared_ns);
    }
    (void)snprintf(line, sizeof line,
                   "step %" PRId64 "/%" PRId64 " (%.0f%%) | loss %.3f | val %s | %s tok/s%s | push "
                   "%.1fx | stale %.1f | eta %s",
                   step->step, report->job.steps,
                   100.0 * (double)step->step / (double)report->job.steps, (double)step->loss, val,
                   rate, mfu, report_push_ratio(&step->counters), report_staleness(&step->counters),
                   left);
    (void)fprintf(stderr, report->live ? "\r%s\033[K" : "%s\n", line);
    (void)fflush(stderr);
    report->line_open = report->live;
    report->printed_ns = now_ns;
    report->flops_share = 0;
    report->shared_ns = 0;
}

void report_step(struct report *report, const struct report_step *step) {
    int64_t now_ns = clock_now_ns();
    if (report->metrics != NULL) {
        write_metrics(report, step, now_ns);
    }
    if (!report->line && !report->live) {
        return;
    }
    if (step->mfu > 0) {
        double took_ns = (double)(step->forward_ns + step->backward_ns + step->wait_ns);
        report->flops_share += step->mfu * took_ns;
        report->shared_ns += took_ns;
    }
    bool last = step->step >= report->job.steps;
    int64_t every = report->live                                ? LIVE_EVERY_NS
                    : strcmp(report->job.progress, "line") == 0 ? LINE_EVERY_NS
                                                                : SLOW_EVERY_NS;
    if (last || now_ns - report->printed_ns >= every) {
        print_progress(report, step, now_ns);
    }
}

/* Model output is bytes of any kind: what a terminal might act on is shown as a dot. */
static void print_sample(const char *sample, size_t bytes) {
    printf("--- sample ---\n");
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)sample[i];
        putchar(c == '\n' || (c >= 0x20 && c != 0x7f && (c < 0x80 || c > 0x9f)) ? c : '.');
    }
    printf("\n--- end ---\n");
}

void report_result(struct report *report, const struct report_step *last, const char *sample,
                   size_t sample_bytes) {
    double rate = tokens_a_second(report, last, last->start_ns);
    double bits = last->val_loss / log(2);
    if (report->line_open) {
        fputc('\n', stderr);
        report->line_open = false;
    }
    const char *unit = report->bytes ? "byte" : "token";
    char per_byte[64] = "";
    if (!report->bytes && last->bytes_a_token > 0) {
        (void)snprintf(per_byte, sizeof per_byte, " bits_per_byte=%.4f",
                       bits / last->bytes_a_token);
    }
    printf("val_loss %.4f nats a %s, %.4f bits per %s%s%s\n", last->val_loss, unit, bits, unit,
           per_byte[0] != '\0' ? "," : "", per_byte);
    if (sample_bytes > 0) {
        print_sample(sample, sample_bytes);
    }
    write_result(report, last, rate);
    printf("files: %s (model.safetensors, config.json, %s, options.conf)\n", report->folder,
           report->metrics_name);
    printf("result: val_loss=%.4f bits_per_%s=%.4f%s steps=%" PRId64
           " mode=%s push_ratio=%.2f tok_s=%.0f run_dir=%s\n",
           last->val_loss, unit, bits, per_byte, report->job.steps, report->job.mode,
           report_push_ratio(&last->counters), rate, report->folder);
    (void)fflush(stdout);
}
