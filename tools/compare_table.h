/* compare_table.h - what the runs say together: a row of numbers for each arm.
 *
 * Definitions, for an arm with k finished runs (one a seed), so that anyone can make the numbers
 * again from results.jsonl (tests/test_compare.py does):
 *   step time       forward + backward + wait of a step of worker 0; validation is not in it
 *   cut             the first tenth of a run's steps, 10 at most, is left out of all step times
 *   median, p99     over all steps of all k runs; p99: the value of rank ceil(0.99 n)
 *   tok_s           workers x tokens of a worker's step / mean step time
 *   val_loss        mean over the runs, at the step that all runs of all arms have reached;
 *                   between two validations of a run a straight line
 *   sd              sample standard deviation of those k losses (n - 1); none for k < 2
 *   delta           mean over the seeds that the baseline has finished, too, of the differences;
 *                   without a common seed the difference of the means
 *   se              standard error of that mean: sample standard deviation of the differences
 *                   / sqrt(their number); none for the baseline, and for less than 2
 *   up, down        mean bytes of a step that worker 0 pushed and pulled, headers included
 *   f32_up, f32_down   4 bytes x values / those; bf16: 2 x 2 bytes x values / (up + down)
 *   f32_up_end, bf16_end   the same ratios of the last tenth of each run's steps (1 at least): when
 *                   a codec's dense start is over
 *   codec_gb_s      4 bytes x values / mean time in codecs; none where it is not measured
 *   curve           at each step where all k runs were validated: mean loss, mean sum of the step
 *                   times so far (no cut), mean sum of the bytes so far, both directions
 *   target_s, target_bytes   where the curve first meets the target, by a straight line between
 *                   its points; the target is the baseline's val_loss, or --target
 * NaN stands for what is not known.
 */
#ifndef RUBATO_TOOLS_COMPARE_TABLE_H
#define RUBATO_TOOLS_COMPARE_TABLE_H

#include "tools/compare_grid.h"
#include "tools/compare_read.h"

#include <stdbool.h>
#include <stddef.h>

enum compare_column {
    COLUMN_VAL_LOSS,
    COLUMN_DELTA,
    COLUMN_SE,
    COLUMN_SD,
    COLUMN_RUNS,
    COLUMN_UP,
    COLUMN_DOWN,
    COLUMN_F32_UP,
    COLUMN_F32_DOWN,
    COLUMN_BF16,
    COLUMN_F32_UP_END,
    COLUMN_BF16_END,
    COLUMN_MEDIAN,
    COLUMN_P99,
    COLUMN_FORWARD,
    COLUMN_BACKWARD,
    COLUMN_WAIT,
    COLUMN_TOK_S,
    COLUMN_CODEC,
    COLUMN_TARGET_S,
    COLUMN_TARGET_BYTES,
    COLUMN_RESIDUAL,
    COLUMN_MEMORY,
    COMPARE_COLUMNS
};

struct compare_column_info {
    const char *key;     /* in the report and in tests */
    const char *heading; /* of the printed table */
    const char *title;   /* of the report */
    double unit;         /* values are shown divided by it */
    const char *format;  /* of one double */
};

extern const struct compare_column_info compare_columns[COMPARE_COLUMNS];

struct compare_point {
    double step, loss, seconds, bytes;
};

struct compare_row {
    size_t runs, ok;
    double value[COMPARE_COLUMNS];
    double step_ms; /* mean step time */
    double workers, servers;
    struct compare_point *curve; /* [curve_count] */
    size_t curve_count;
};

struct compare_table {
    const struct compare_arm *arms; /* [arm_count], the caller's */
    size_t arm_count;
    const struct compare_run *runs; /* [run_count], the caller's */
    size_t run_count;
    size_t baseline;          /* an arm */
    bool baseline_is_bf16;    /* both ways; else it is the first arm */
    double baseline_sd;       /* of its losses */
    double equal_step;        /* where losses are compared */
    bool steps_differ;        /* the runs have not all the same number of steps */
    double target;            /* nats a token; NaN while the baseline is not known */
    struct compare_row *rows; /* [arm_count] */
};

/* `target` 0: the baseline's loss. Free it. */
void compare_table_make(struct compare_table *table, double target);
void compare_table_free(struct compare_table *table);

/* A row's cell as users read it; "-" for what is not known. */
void compare_table_cell(const struct compare_table *table, size_t arm, enum compare_column column,
                        char *text, size_t bytes);

/* Does any row know it? */
bool compare_table_has(const struct compare_table *table, enum compare_column column);

/* Step time at a link of `bytes_a_second`, in ms, from the arm's measured one without a limit:
 * T(B) = T + max(0, bytes / B - backward), where bytes are those of the busiest link and direction:
 * the worker's own, or those of a server, which talks with workers / servers of them. NaN when
 * something is not known. */
double compare_table_model_ms(const struct compare_table *table, size_t arm, double bytes_a_second);

#endif
