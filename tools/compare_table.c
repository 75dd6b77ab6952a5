#include "tools/compare_table.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUT_MAX ((size_t)10)

const struct compare_column_info compare_columns[COMPARE_COLUMNS] = {
    [COLUMN_VAL_LOSS] = {"val_loss", "val_loss", "validation loss", 1, "%.4f"},
    [COLUMN_DELTA] = {"delta", "delta", "minus baseline", 1, "%+.4f"},
    [COLUMN_SE] = {"se", "se", "standard error of that", 1, "%.4f"},
    [COLUMN_SD] = {"sd", "sd", "sd over seeds", 1, "%.4f"},
    [COLUMN_RUNS] = {"runs", "n", "runs", 1, "%.0f"},
    [COLUMN_UP] = {"up_bytes", "up_MB", "up, MB a step", 1e6, "%.4g"},
    [COLUMN_DOWN] = {"down_bytes", "down_MB", "down, MB a step", 1e6, "%.4g"},
    [COLUMN_F32_UP] = {"f32_up", "f32/up", "f32 / up", 1, "%.2f"},
    [COLUMN_F32_DOWN] = {"f32_down", "f32/down", "f32 / down", 1, "%.2f"},
    [COLUMN_BF16] = {"bf16", "bf16/both", "bf16 / both", 1, "%.2f"},
    [COLUMN_F32_UP_END] = {"f32_up_end", "f32/up_end", "f32 / up at the end", 1, "%.2f"},
    [COLUMN_BF16_END] = {"bf16_end", "bf16/both_end", "bf16 / both at the end", 1, "%.2f"},
    [COLUMN_MEDIAN] = {"median_ms", "p50_ms", "median step, ms", 1, "%.2f"},
    [COLUMN_P99] = {"p99_ms", "p99_ms", "p99 step, ms", 1, "%.2f"},
    [COLUMN_FORWARD] = {"forward_ms", "fwd_ms", "forward, ms", 1, "%.2f"},
    [COLUMN_BACKWARD] = {"backward_ms", "bwd_ms", "backward, ms", 1, "%.2f"},
    [COLUMN_WAIT] = {"wait_ms", "wait_ms", "wait, ms", 1, "%.2f"},
    [COLUMN_TOK_S] = {"tok_s", "tok/s", "tokens/s", 1, "%.0f"},
    [COLUMN_CODEC] = {"codec_gb_s", "codec_GB/s", "codec, GB/s", 1, "%.2f"},
    [COLUMN_TARGET_S] = {"target_s", "s_to_target", "to target, s", 1, "%.2f"},
    [COLUMN_TARGET_BYTES] = {"target_bytes", "MB_to_target", "to target, MB", 1e6, "%.4g"},
    [COLUMN_RESIDUAL] = {"residual_norm", "residual", "residual norm", 1, "%.4g"},
    [COLUMN_MEMORY] = {"codec_bytes", "extra_MB", "codec memory, MB", 1e6, "%.4g"},
};

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double step_ms(const struct compare_step *step) {
    return step->forward_ms + step->backward_ms + step->wait_ms;
}

static bool run_is(const struct compare_run *run, size_t arm) {
    return run->arm == arm && run->state == COMPARE_OK;
}

/* The run's loss at a step: a straight line between two validations, level beyond the last. */
static double loss_at(const struct compare_run *run, double step) {
    const struct compare_validation *all = run->validations;
    for (size_t i = 0; i < run->validation_count; i++) {
        if (all[i].step < step) continue;
        if (i == 0 || all[i].step == step) return all[i].loss;
        double part = (step - all[i - 1].step) / (all[i].step - all[i - 1].step);
        return all[i - 1].loss + part * (all[i].loss - all[i - 1].loss);
    }
    return run->validation_count > 0 ? all[run->validation_count - 1].loss : NAN;
}

static void find_equal_step(struct compare_table *table) {
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < table->run_count; i++) {
        const struct compare_run *run = &table->runs[i];
        if (run->state != COMPARE_OK) continue;
        double last = run->validations[run->validation_count - 1].step;
        least = last < least ? last : least;
        most = last > most ? last : most;
    }
    table->equal_step = isfinite(least) ? least : NAN;
    table->steps_differ = isfinite(least) && least < most;
}

static void find_baseline(struct compare_table *table) {
    table->baseline = 0;
    table->baseline_is_bf16 = false;
    for (size_t i = 0; i < table->arm_count && !table->baseline_is_bf16; i++) {
        const struct compare_arm *arm = &table->arms[i];
        if (strcmp(arm->axis[COMPARE_PUSH], "bf16") == 0 &&
            strcmp(arm->axis[COMPARE_PULL], "bf16") == 0 && arm->options[0] == '\0') {
            table->baseline = i;
            table->baseline_is_bf16 = true;
        }
    }
}

static void fill_losses(const struct compare_table *table, size_t arm, struct compare_row *row) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < table->run_count; i++) {
        const struct compare_run *run = &table->runs[i];
        row->runs += run->arm == arm ? 1 : 0;
        if (!run_is(run, arm)) continue;
        row->ok++;
        sum += loss_at(run, table->equal_step);
        row->workers = run->workers;
        row->servers = run->servers;
    }
    row->value[COLUMN_RUNS] = (double)row->ok;
    if (row->ok == 0) return;
    double mean = sum / (double)row->ok;
    row->value[COLUMN_VAL_LOSS] = mean;
    for (size_t i = 0; i < table->run_count; i++) {
        const struct compare_run *run = &table->runs[i];
        if (!run_is(run, arm)) continue;
        double off = loss_at(run, table->equal_step) - mean;
        squares += off * off;
    }
    if (row->ok > 1) row->value[COLUMN_SD] = sqrt(squares / (double)(row->ok - 1));
}

static const struct compare_run *find_run(const struct compare_table *table, size_t arm,
                                          int64_t seed) {
    for (size_t i = 0; i < table->run_count; i++) {
        const struct compare_run *run = &table->runs[i];
        if (run_is(run, arm) && run->seed == seed) return run;
    }
    return NULL;
}

/* The difference to the baseline with the same seed; NaN without one. */
static double paired_delta(const struct compare_table *table, const struct compare_run *run) {
    const struct compare_run *other = find_run(table, table->baseline, run->seed);
    return other == NULL ? NAN
                         : loss_at(run, table->equal_step) - loss_at(other, table->equal_step);
}

static void fill_delta(const struct compare_table *table, size_t arm) {
    struct compare_row *row = &table->rows[arm];
    double sum = 0, squares = 0, common = 0;
    for (size_t i = 0; i < table->run_count; i++) {
        double delta = run_is(&table->runs[i], arm) ? paired_delta(table, &table->runs[i]) : NAN;
        if (isnan(delta)) continue;
        sum += delta;
        common++;
    }
    row->value[COLUMN_DELTA] = common > 0 ? sum / common
                                          : row->value[COLUMN_VAL_LOSS] -
                                                table->rows[table->baseline].value[COLUMN_VAL_LOSS];
    if (common < 2 || arm == table->baseline) return;
    for (size_t i = 0; i < table->run_count; i++) {
        double delta = run_is(&table->runs[i], arm) ? paired_delta(table, &table->runs[i]) : NAN;
        if (isnan(delta)) continue;
        double off = delta - sum / common;
        squares += off * off;
    }
    row->value[COLUMN_SE] = sqrt(squares / (common - 1) / common);
}

/* Sums over the steps of an arm's runs. */
struct sums {
    double forward, backward, wait, codec, up, down, up_end, down_end;
    size_t timed, all, ended;
    double *times; /* [timed] */
    double values, step_tokens;
    double residual, memory; /* at the last step */
};

static void sum_run(struct sums *sums, const struct compare_run *run) {
    size_t tenth = run->trace_count / 10;
    size_t cut = tenth < CUT_MAX ? tenth : CUT_MAX, end = tenth > 0 ? tenth : 1;
    for (size_t i = 0; i < run->trace_count; i++) {
        const struct compare_step *step = &run->trace[i];
        sums->up += step->push_bytes;
        sums->down += step->pull_bytes;
        sums->all++;
        if (i >= run->trace_count - end) {
            sums->up_end += step->push_bytes;
            sums->down_end += step->pull_bytes;
            sums->ended++;
        }
        if (i < cut) continue;
        sums->forward += step->forward_ms;
        sums->backward += step->backward_ms;
        sums->wait += step->wait_ms;
        sums->codec += step->codec_ms;
        sums->times[sums->timed++] = step_ms(step);
    }
    const struct compare_step *last = &run->trace[run->trace_count - 1];
    sums->residual += last->residual_norm;
    sums->memory += last->codec_bytes;
    sums->values = run->values;
    sums->step_tokens = run->step_tokens;
}

static void fill_times(struct compare_row *row, const struct sums *sums) {
    double timed = (double)sums->timed;
    size_t half = sums->timed / 2;
    qsort(sums->times, sums->timed, sizeof *sums->times, compare_doubles);
    row->value[COLUMN_MEDIAN] =
        sums->timed % 2 == 1 ? sums->times[half] : (sums->times[half - 1] + sums->times[half]) / 2;
    row->value[COLUMN_P99] = sums->times[(sums->timed * 99 + 99) / 100 - 1];
    row->value[COLUMN_FORWARD] = sums->forward / timed;
    row->value[COLUMN_BACKWARD] = sums->backward / timed;
    row->value[COLUMN_WAIT] = sums->wait / timed;
    row->step_ms = (sums->forward + sums->backward + sums->wait) / timed;
    row->value[COLUMN_TOK_S] = row->workers * sums->step_tokens * 1000 / row->step_ms;
    if (sums->codec > 0) {
        row->value[COLUMN_CODEC] = 4 * sums->values / (sums->codec / timed) / 1e6;
    }
}

static void fill_steps(const struct compare_table *table, size_t arm, struct compare_row *row) {
    struct sums sums = {0};
    size_t steps = 1;
    for (size_t i = 0; i < table->run_count; i++) {
        if (run_is(&table->runs[i], arm)) steps += table->runs[i].trace_count;
    }
    sums.times = memory_zeroed(steps, sizeof *sums.times);
    for (size_t i = 0; i < table->run_count; i++) {
        if (run_is(&table->runs[i], arm)) sum_run(&sums, &table->runs[i]);
    }
    fill_times(row, &sums);
    double up = sums.up / (double)sums.all, down = sums.down / (double)sums.all;
    row->value[COLUMN_UP] = up;
    row->value[COLUMN_DOWN] = down;
    row->value[COLUMN_F32_UP] = 4 * sums.values / up;
    row->value[COLUMN_F32_DOWN] = 4 * sums.values / down;
    row->value[COLUMN_BF16] = 4 * sums.values / (up + down);
    row->value[COLUMN_F32_UP_END] = 4 * sums.values * (double)sums.ended / sums.up_end;
    row->value[COLUMN_BF16_END] =
        4 * sums.values * (double)sums.ended / (sums.up_end + sums.down_end);
    row->value[COLUMN_RESIDUAL] = sums.residual / (double)row->ok;
    row->value[COLUMN_MEMORY] = sums.memory / (double)row->ok;
    free(sums.times);
}

/* Adds a run's part of the curve's point at `step`; false when it was not validated there. */
static bool add_point(const struct compare_run *run, double step, struct compare_point *point) {
    bool found = false;
    for (size_t i = 0; i < run->validation_count; i++) {
        if (run->validations[i].step != step) continue;
        found = true;
        point->loss += run->validations[i].loss;
    }
    double ms = 0;
    for (size_t i = 0; i < run->trace_count && run->trace[i].step <= step; i++) {
        ms += step_ms(&run->trace[i]);
        point->bytes += run->trace[i].push_bytes + run->trace[i].pull_bytes;
    }
    point->seconds += ms / 1000;
    return found;
}

static void fill_curve(const struct compare_table *table, size_t arm, struct compare_row *row) {
    const struct compare_run *first = NULL;
    for (size_t i = 0; i < table->run_count && first == NULL; i++) {
        if (run_is(&table->runs[i], arm)) first = &table->runs[i];
    }
    if (first == NULL) return;
    double ok = (double)row->ok;
    row->curve = memory_zeroed(first->validation_count, sizeof *row->curve);
    for (size_t v = 0; v < first->validation_count; v++) {
        struct compare_point point = {.step = first->validations[v].step};
        bool all = true;
        for (size_t i = 0; i < table->run_count; i++) {
            if (!run_is(&table->runs[i], arm)) continue;
            all = add_point(&table->runs[i], point.step, &point) && all;
        }
        if (!all) continue;
        point.loss /= ok;
        point.seconds /= ok;
        point.bytes /= ok;
        row->curve[row->curve_count++] = point;
    }
}

static void fill_target(const struct compare_table *table, struct compare_row *row) {
    for (size_t i = 0; i < row->curve_count; i++) {
        const struct compare_point *point = &row->curve[i];
        if (!(point->loss <= table->target)) continue;
        row->value[COLUMN_TARGET_S] = point->seconds;
        row->value[COLUMN_TARGET_BYTES] = point->bytes;
        if (i == 0) return;
        const struct compare_point *before = point - 1;
        double part = (before->loss - table->target) / (before->loss - point->loss);
        row->value[COLUMN_TARGET_S] = before->seconds + part * (point->seconds - before->seconds);
        row->value[COLUMN_TARGET_BYTES] = before->bytes + part * (point->bytes - before->bytes);
        return;
    }
}

void compare_table_make(struct compare_table *table, double target) {
    find_equal_step(table);
    find_baseline(table);
    table->rows = memory_zeroed(table->arm_count, sizeof *table->rows);
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        struct compare_row *row = &table->rows[arm];
        for (size_t i = 0; i < COMPARE_COLUMNS; i++) {
            row->value[i] = NAN;
        }
        row->step_ms = row->workers = row->servers = NAN;
        fill_losses(table, arm, row);
        if (row->ok == 0) continue;
        fill_steps(table, arm, row);
        fill_curve(table, arm, row);
    }
    const struct compare_row *baseline = &table->rows[table->baseline];
    table->baseline_sd = baseline->value[COLUMN_SD];
    table->target = target != 0 ? target : baseline->value[COLUMN_VAL_LOSS];
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        if (table->rows[arm].ok == 0) continue;
        fill_delta(table, arm);
        fill_target(table, &table->rows[arm]);
    }
}

void compare_table_free(struct compare_table *table) {
    for (size_t arm = 0; table->rows != NULL && arm < table->arm_count; arm++) {
        free(table->rows[arm].curve);
    }
    free(table->rows);
    table->rows = NULL;
}

void compare_table_cell(const struct compare_table *table, size_t arm, enum compare_column column,
                        char *text, size_t bytes) {
    const struct compare_column_info *info = &compare_columns[column];
    double value = table->rows[arm].value[column];
    if (column == COLUMN_RUNS) {
        (void)snprintf(text, bytes, "%zu/%zu", table->rows[arm].ok, table->rows[arm].runs);
    } else if (isfinite(value)) {
        (void)snprintf(text, bytes, info->format, value / info->unit);
    } else {
        (void)snprintf(text, bytes, "-");
    }
}

bool compare_table_has(const struct compare_table *table, enum compare_column column) {
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        if (isfinite(table->rows[arm].value[column])) return true;
    }
    return false;
}

double compare_table_model_ms(const struct compare_table *table, size_t arm,
                              double bytes_a_second) {
    const struct compare_row *row = &table->rows[arm];
    double up = row->value[COLUMN_UP], down = row->value[COLUMN_DOWN];
    double busiest = up > down ? up : down;
    if (row->workers > row->servers) busiest *= row->workers / row->servers;
    double left = busiest / bytes_a_second * 1000 - row->value[COLUMN_BACKWARD];
    return row->step_ms + (left > 0 ? left : 0);
}
