/* compare_figures.c - the figures of the report, from the table. */
#include "base/memory.h"
#include "tools/compare_plot.h"
#include "tools/compare_report.h"
#include "transport/paced.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_POINTS = 240, MARKS_MAX = 8 };
#define LEAST_BITS 1e6
#define MOST_BITS  1e11

/* One figure of losses: a series an arm, over one of the curve's other members. */
static void add_losses(struct compare_text *text, const struct compare_table *table, const char *id,
                       const char *title, const char *x_label, size_t offset) {
    struct plot_series *series = memory_zeroed(table->arm_count, sizeof *series);
    double **memory = memory_zeroed(2 * table->arm_count, sizeof *memory);
    size_t count = 0;
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        const struct compare_row *row = &table->rows[arm];
        if (row->curve_count == 0) continue;
        double *x = memory[2 * count] = memory_zeroed(row->curve_count, sizeof *x);
        double *y = memory[2 * count + 1] = memory_zeroed(row->curve_count, sizeof *y);
        for (size_t i = 0; i < row->curve_count; i++) {
            x[i] = *(const double *)((const char *)&row->curve[i] + offset);
            y[i] = row->curve[i].loss;
        }
        series[count++] = (struct plot_series){.label = table->arms[arm].label,
                                               .x = x,
                                               .y = y,
                                               .count = row->curve_count,
                                               .color = table->arms[arm].group,
                                               .pattern = table->arms[arm].link,
                                               .line = true,
                                               .points = row->curve_count <= 40};
    }
    struct plot plot = {.id = id,
                        .title = title,
                        .x_label = x_label,
                        .y_label = "validation loss, nats a token",
                        .series = series,
                        .series_count = count};
    compare_plot_lines(text, &plot);
    for (size_t i = 0; i < 2 * count; i++) {
        free(memory[i]);
    }
    free(memory);
    free(series);
}

static void add_phases(struct compare_text *text, const struct compare_table *table) {
    static const char *const parts[] = {"forward", "backward (pushes overlap with it)",
                                        "exposed wait"};
    struct plot_bar *bars = memory_zeroed(table->arm_count, sizeof *bars);
    size_t count = 0;
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        if (table->rows[arm].ok == 0) continue;
        bars[count++] =
            (struct plot_bar){table->arms[arm].label, &table->rows[arm].value[COLUMN_FORWARD]};
    }
    struct plot plot = {
        .id = "plot-phases", .title = "Where a step's time goes", .x_label = "mean of a step, ms"};
    compare_plot_bars(text, &plot, bars, count, parts, 3);
    free(bars);
}

/* ---- tokens a second over bandwidth ---- */

/* All that the figure needs of a group: its arm without a limit, and what is measured. */
struct bandwidth_group {
    bool has_model;
    char name[COMPARE_AXES * OPTION_TEXT_MAX];
    char measured_label[COMPARE_AXES * OPTION_TEXT_MAX + 16];
    char model_label[COMPARE_AXES * OPTION_TEXT_MAX + 16];
    double *x, *y; /* measured [count] */
    size_t count;
    double *model; /* [MODEL_POINTS] tokens a second */
};

static double model_bits(size_t point) {
    return LEAST_BITS * pow(MOST_BITS / LEAST_BITS, (double)point / (MODEL_POINTS - 1));
}

/* Its label without the link, which is the last part where it is made of the lists' values. */
static void name_group(struct bandwidth_group *group, const struct compare_arm *arm) {
    (void)snprintf(group->name, sizeof group->name, "%s", arm->label);
    char *link = arm->options[0] == '\0' ? strstr(group->name, "link=") : NULL;
    if (link == group->name) {
        (void)snprintf(group->name, sizeof group->name, "%s", arm->axis[COMPARE_PUSH]);
    } else if (link != NULL) {
        link[-1] = '\0';
    }
    (void)snprintf(group->measured_label, sizeof group->measured_label, "%s, measured",
                   group->name);
    (void)snprintf(group->model_label, sizeof group->model_label, "%s, modelled", group->name);
}

static void fill_group(const struct compare_table *table, struct bandwidth_group *group,
                       size_t arm) {
    const struct compare_row *row = &table->rows[arm];
    uint64_t rate = 0;
    if (row->ok == 0) return;
    if (paced_parse(table->arms[arm].axis[COMPARE_LINK], &rate) != STATUS_OK) rate = 0;
    if (group->count == 0 && !group->has_model) name_group(group, &table->arms[arm]);
    group->x[group->count] = rate > 0 ? (double)rate * 8 : MOST_BITS;
    group->y[group->count++] = row->value[COLUMN_TOK_S];
    if (rate > 0 || group->has_model) return;
    group->has_model = isfinite(compare_table_model_ms(table, arm, 1e9));
    double tokens = row->value[COLUMN_TOK_S] * row->step_ms;
    for (size_t i = 0; i < MODEL_POINTS && group->has_model; i++) {
        group->model[i] = tokens / compare_table_model_ms(table, arm, model_bits(i) / 8);
    }
}

static size_t best_at(const struct bandwidth_group *groups, size_t count, size_t point) {
    size_t best = count;
    for (size_t i = 0; i < count; i++) {
        if (!groups[i].has_model) continue;
        if (best == count || groups[i].model[point] > groups[best].model[point]) best = i;
    }
    return best;
}

/* Where another setting becomes the fastest one -> marks [MARKS_MAX], labels. */
static size_t find_crossings(const struct bandwidth_group *groups, size_t count,
                             struct plot_mark *marks, char (*labels)[256]) {
    size_t found = 0;
    for (size_t i = 1; i < MODEL_POINTS && found < MARKS_MAX; i++) {
        size_t before = best_at(groups, count, i - 1), after = best_at(groups, count, i);
        if (before == count || before == after) continue;
        double bits = sqrt(model_bits(i - 1) * model_bits(i));
        (void)snprintf(labels[found], sizeof labels[found],
                       "below %.3g Mbit/s: %.60s; above: %.60s", bits / 1e6, groups[before].name,
                       groups[after].name);
        marks[found] = (struct plot_mark){bits, labels[found]};
        found++;
    }
    return found;
}

static void draw_bandwidth(struct compare_text *text, const struct bandwidth_group *groups,
                           size_t count) {
    double x[MODEL_POINTS];
    struct plot_series *series = memory_zeroed(2 * count + 1, sizeof *series);
    struct plot_mark marks[MARKS_MAX];
    char labels[MARKS_MAX][256];
    size_t used = 0;
    for (size_t i = 0; i < MODEL_POINTS; i++) {
        x[i] = model_bits(i);
    }
    for (size_t i = 0; i < count; i++) {
        const struct bandwidth_group *group = &groups[i];
        if (group->count > 0) {
            series[used++] = (struct plot_series){
                group->measured_label, group->x, group->y, group->count, i, 0, false, true};
        }
        if (group->has_model) {
            series[used++] = (struct plot_series){
                group->model_label, x, group->model, MODEL_POINTS, i, 1, true, false};
        }
    }
    struct plot plot = {
        .id = "plot-bandwidth",
        .title = "Speed over bandwidth: measured and modelled, with crossover lines",
        .x_label = "bits a second of a process's link, each direction",
        .y_label = "tokens a second, all workers",
        .note = "Points are measured: links are paced by a token bucket in each process, and the "
                "points at the right edge have no limit. Dashed lines are modelled: the step time "
                "without a limit, plus what of the transfer (of the busiest link and direction) "
                "backward cannot hide. Upright lines: where another setting becomes the fastest.",
        .log_x = true,
        .log_y = true,
        .series = series,
        .series_count = used,
        .marks = marks,
        .mark_count = find_crossings(groups, count, marks, labels)};
    compare_plot_lines(text, &plot);
    free(series);
}

static void add_bandwidth(struct compare_text *text, const struct compare_table *table) {
    size_t count = 0;
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        count = table->arms[arm].group >= count ? table->arms[arm].group + 1 : count;
    }
    struct bandwidth_group *groups = memory_zeroed(count, sizeof *groups);
    for (size_t i = 0; i < count; i++) {
        groups[i].x = memory_zeroed(table->arm_count, sizeof *groups[i].x);
        groups[i].y = memory_zeroed(table->arm_count, sizeof *groups[i].y);
        groups[i].model = memory_zeroed(MODEL_POINTS, sizeof *groups[i].model);
    }
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        fill_group(table, &groups[table->arms[arm].group], arm);
    }
    draw_bandwidth(text, groups, count);
    for (size_t i = 0; i < count; i++) {
        free(groups[i].x);
        free(groups[i].y);
        free(groups[i].model);
    }
    free(groups);
}

void compare_figures_add(struct compare_text *text, const struct compare_table *table) {
    compare_text_add(text, "<div class=\"figures\">\n");
    add_losses(text, table, "plot-loss-step", "Loss over steps", "steps",
               offsetof(struct compare_point, step));
    add_losses(text, table, "plot-loss-time", "Loss over time",
               "seconds of training (without validation)", offsetof(struct compare_point, seconds));
    add_losses(text, table, "plot-loss-bytes", "Loss over bytes",
               "bytes of one worker, both directions", offsetof(struct compare_point, bytes));
    add_phases(text, table);
    add_bandwidth(text, table);
    compare_text_add(text, "</div>\n");
}
