/* compare_read.h - a finished run, read back from its folder.
 *
 * metrics.jsonl gives the steps, options.conf the settings, model.safetensors the number of values.
 * Fields that an older or newer worker does not write are NaN, and what is made of them is "-".
 * The last validation is in no step's line: it is a line of its own ("rubato.result/1") or, in what
 * the processes printed (log.txt), "result: val_loss=...". Set-up code; one thread.
 */
#ifndef RUBATO_TOOLS_COMPARE_READ_H
#define RUBATO_TOOLS_COMPARE_READ_H

#include "base/options.h"
#include "base/status.h"
#include "tools/compare_grid.h"

#include <stddef.h>
#include <stdint.h>

/* One step of worker 0. NaN: not known. */
struct compare_step {
    double step; /* from 1 */
    double loss; /* of its batch, nats a token */
    double forward_ms, backward_ms;
    double wait_ms;                /* until the weights are back: what of the exchange shows */
    double codec_ms;               /* CPU time in codecs */
    double push_bytes, pull_bytes; /* headers included */
    double residual_norm;          /* of error feedback */
    double codec_bytes;            /* memory that codecs keep */
};

/* One validation. */
struct compare_validation {
    double step; /* steps made before it */
    double loss; /* nats a token */
};

enum compare_state { COMPARE_PENDING, COMPARE_RUNNING, COMPARE_OK, COMPARE_FAILED };

/* One run: an arm with one seed. */
struct compare_run {
    size_t arm;
    int64_t seed;
    enum compare_state state;
    char folder[2048];
    char why[256]; /* of a failure */
    char axis[COMPARE_AXES][OPTION_TEXT_MAX];
    double values; /* of the model; NaN: not known */
    double workers, servers, steps;
    double step_tokens;         /* of one worker */
    struct compare_step *trace; /* [trace_count] */
    size_t trace_count;
    struct compare_validation *validations; /* [validation_count], by step */
    size_t validation_count;
};

/* Reads run->folder; fills in all from `axis` on, and `seed` with the run's. CORRUPT: no step or no
 * validation in it, IO: cannot be read; run->why says it. */
enum status compare_read(struct compare_run *run) WARN_UNUSED;

void compare_run_free(struct compare_run *run);

#endif
