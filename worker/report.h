/* report.h - what a run tells its user: the progress line, metrics.jsonl, and the result.
 *
 * The folder of a run holds metrics.jsonl (an object a step, schema "rubato.step/1"), options.conf,
 * model.safetensors and config.json. Worker 0 prints the progress line to standard error, the
 * worker that saves (the lowest rank that is left) the result to standard output and, as an object
 * of schema "rubato.result/1", to the end of its metrics. The metrics of other ranks are
 * metrics.rankN.jsonl; they are written only if --run-dir was given, or by the saver.
 */
#ifndef RUBATO_WORKER_REPORT_H
#define RUBATO_WORKER_REPORT_H

#include "kernels/device.h"
#include "proto/job.h"
#include "worker/exchange.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* One step, as it is measured. Times in nanoseconds of the monotonic clock. */
struct report_step {
    int64_t step; /* from 1: the worker's place in the job */
    double lr;
    double weight;        /* of the last report */
    int64_t local_steps;  /* of the last report */
    int64_t round;        /* highest version of the weights */
    float loss;           /* of this worker's batch, nats a token */
    double val_loss;      /* of the last validation; NaN before the first */
    double bytes_a_token; /* in that validation; 0: not known */
    int64_t start_ns;
    int64_t forward_ns, backward_ns;   /* computing; pushing overlaps with backward */
    int64_t first_push_ns;             /* from the start until the first block of the step's */
    int64_t last_push_ns;              /* report was handed over, and the last; -1: none was */
    int64_t forward_wait_ns;           /* in forward, for weights of the round before */
    int64_t wait_ns;                   /* that, and from the end of backward to the next step */
    double mfu;                        /* model_flops.h, of the step with its wait; 0: not known */
    uint64_t job_tokens;               /* all workers' together so far */
    struct exchange_counters counters; /* since the start */
    uint64_t device_bytes;             /* taken of the device's memory now, and at most; */
    uint64_t device_bytes_most;        /* 0 on the host */
    struct device_reading reading;     /* of a device; memory_total 0: nothing is told */
};

struct report {
    struct job job; /* a copy, as assigned */
    uint32_t rank;
    bool bytes;       /* a token is a byte */
    char folder[512]; /* "" when nothing is written */
    char metrics_name[32];
    FILE *metrics;   /* NULL when nothing is written */
    bool line, live; /* progress: whole lines; one line rewritten in place */
    int64_t started_ns, printed_ns;
    struct exchange_counters before; /* of the previous step */
    double flops_share, shared_ns;   /* sums of mfu * time and of time since the last line */
    bool line_open;                  /* a live line stands on the terminal */
};

/* Once the job's options are known. Makes the folder. `bytes`: a token is a byte. IO, logged. */
enum status report_open(struct report *report, const struct options *options, uint32_t rank,
                        bool bytes) WARN_UNUSED;
void report_close(struct report *report);

/* The job's mode has changed. */
void report_mode(struct report *report, const char *mode);

/* The run is saved here. Another worker than 0 makes the folder and the files that worker 0 would
 * have made, where it has none. IO, logged. */
enum status report_take_over(struct report *report, const struct options *options) WARN_UNUSED;

/* After each step: the metrics line, and the progress line if it is due. */
void report_step(struct report *report, const struct report_step *step);

/* At the end, the saver: validation loss, sample (bytes [sample_bytes]), files, result line. */
void report_result(struct report *report, const struct report_step *last, const char *sample,
                   size_t sample_bytes);

/* f32 bytes of the pushed values over bytes on the wire, headers included; 1 when nothing was
 * pushed. */
double report_push_ratio(const struct exchange_counters *counters);

/* Mean over answered pushes. */
double report_staleness(const struct exchange_counters *counters);

#endif
