#include "tools/compare_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH  560.0
#define HEIGHT 350.0
#define LEFT   64.0
#define RIGHT  16.0
#define TOP    14.0
#define BOTTOM 48.0
#define MARGIN 12.0 // of bars, whose names stand above them
#define COLORS 8

#define PATTERNS 4

enum { TICKS_MAX = 32, PART_COLOR = 5 }; /* parts of bars have colours of their own */

/* From a value to its place on the paper. */
struct axis {
    double least, most; /* their logarithms where `log` is set */
    double begin, end;  /* on the paper */
    bool log;
};

static double place(const struct axis *axis, double value) {
    double v = axis->log ? log10(value) : value;
    return axis->begin + (v - axis->least) / (axis->most - axis->least) * (axis->end - axis->begin);
}

static bool drawable(const struct plot *plot, double x, double y) {
    return isfinite(x) && isfinite(y) && (!plot->log_x || x > 0) && (!plot->log_y || y > 0);
}

/* 1, 2 or 5 times a power of ten, so that about `count` ticks fit. */
static double tick_step(double span, int count) {
    double rough = span / count;
    double power = pow(10, floor(log10(rough)));
    double part = rough / power;
    if (part < 1.5) return power;
    if (part < 3.5) return 2 * power;
    return part < 7.5 ? 5 * power : 10 * power;
}

/* 1500000 as 1.5M. */
static void short_number(double value, char *text, size_t bytes) {
    static const struct {
        double unit;
        const char *suffix;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (fabs(value) >= units[i].unit * 0.9999999) {
            (void)snprintf(text, bytes, "%.4g%s", value / units[i].unit, units[i].suffix);
            return;
        }
    }
    (void)snprintf(text, bytes, "%.4g", fabs(value) < 1e-12 ? 0 : value);
}

static void find_ranges(const struct plot *plot, struct axis *x, struct axis *y) {
    *x = (struct axis){INFINITY, -INFINITY, LEFT, WIDTH - RIGHT, plot->log_x};
    *y = (struct axis){INFINITY, -INFINITY, HEIGHT - BOTTOM, TOP, plot->log_y};
    for (size_t s = 0; s < plot->series_count; s++) {
        const struct plot_series *series = &plot->series[s];
        for (size_t i = 0; i < series->count; i++) {
            if (!drawable(plot, series->x[i], series->y[i])) continue;
            double x_at = plot->log_x ? log10(series->x[i]) : series->x[i];
            double y_at = plot->log_y ? log10(series->y[i]) : series->y[i];
            x->least = fmin(x->least, x_at);
            x->most = fmax(x->most, x_at);
            y->least = fmin(y->least, y_at);
            y->most = fmax(y->most, y_at);
        }
    }
    if (!plot->log_x && x->least > 0) x->least = 0; // steps, seconds, bytes: all begin at 0
    double room = (y->most - y->least) * 0.04;
    if (!(room > 0)) room = fmax(fabs(y->most) * 0.01, 1e-9);
    y->most += room;
    y->least -= room;
    if (!(x->most > x->least)) x->most = x->least + 1;
}

static void open_figure(struct compare_text *text, const struct plot *plot, double height) {
    compare_text_add(text, "<figure id=\"%s\">\n<figcaption>", plot->id);
    compare_text_escape(text, plot->title);
    compare_text_add(text,
                     "</figcaption>\n<svg viewBox=\"0 0 %g %g\" role=\"img\" "
                     "aria-labelledby=\"%s-title\"><title id=\"%s-title\">",
                     WIDTH, height, plot->id, plot->id);
    compare_text_escape(text, plot->title);
    compare_text_add(text, "</title>\n");
}

static void close_figure(struct compare_text *text, const struct plot *plot) {
    if (plot->note != NULL) {
        compare_text_add(text, "<p class=\"note\">");
        compare_text_escape(text, plot->note);
        compare_text_add(text, "</p>\n");
    }
    compare_text_add(text, "</figure>\n");
}

static void words(struct compare_text *text, const char *class, double x, double y,
                  const char *anchor, const char *value) {
    compare_text_add(text, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x,
                     y, anchor);
    compare_text_escape(text, value);
    compare_text_add(text, "</text>\n");
}

/* The axis' ticks -> values [TICKS_MAX]. */
static size_t find_ticks(const struct axis *axis, double *values) {
    size_t count = 0;
    if (!axis->log) {
        double step = tick_step(axis->most - axis->least, 5);
        double first = ceil(axis->least / step - 1e-9);
        for (int i = 0; i < TICKS_MAX && (first + i) * step <= axis->most + step * 1e-9; i++) {
            values[count++] = (first + i) * step;
        }
        return count;
    }
    /* Powers of ten, with 2 and 5 times them where there are few. */
    static const double parts[] = {1, 2, 5};
    size_t used = axis->most - axis->least > 3 ? 1 : 3;
    int last = (int)floor(axis->most + 1e-9);
    for (int power = (int)floor(axis->least); power <= last; power++) {
        for (size_t i = 0; i < used && count < TICKS_MAX; i++) {
            double at = power + log10(parts[i]);
            if (at < axis->least - 1e-9 || at > axis->most + 1e-9) continue;
            values[count++] = parts[i] * pow(10, power);
        }
    }
    return count;
}

static void grid_line(struct compare_text *text, double x1, double y1, double x2, double y2) {
    compare_text_add(text,
                     "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x1,
                     y1, x2, y2);
}

static void x_ticks(struct compare_text *text, const struct axis *x, double bottom) {
    double values[TICKS_MAX];
    size_t count = find_ticks(x, values);
    for (size_t i = 0; i < count; i++) {
        char label[32];
        double at = place(x, values[i]);
        short_number(values[i], label, sizeof label);
        grid_line(text, at, TOP, at, bottom);
        words(text, "tick", at, bottom + 17, "middle", label);
    }
}

static void axes(struct compare_text *text, const struct plot *plot, const struct axis *x,
                 const struct axis *y) {
    double values[TICKS_MAX];
    size_t count = find_ticks(y, values);
    x_ticks(text, x, HEIGHT - BOTTOM);
    for (size_t i = 0; i < count; i++) {
        char label[32];
        double at = place(y, values[i]);
        short_number(values[i], label, sizeof label);
        grid_line(text, LEFT, at, WIDTH - RIGHT, at);
        words(text, "tick", LEFT - 7, at + 4.5, "end", label);
    }
    words(text, "axis", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle", plot->x_label);
    compare_text_add(text, "<g transform=\"translate(15 %.1f) rotate(-90)\">",
                     (TOP + HEIGHT - BOTTOM) / 2);
    words(text, "axis", 0, 0, "middle", plot->y_label);
    compare_text_add(text, "</g>\n");
}

static void draw_line(struct compare_text *text, const struct plot *plot,
                      const struct plot_series *series, const struct axis *x,
                      const struct axis *y) {
    size_t points = 0;
    for (size_t i = 0; i < series->count; i++) {
        points += drawable(plot, series->x[i], series->y[i]) ? 1 : 0;
    }
    if (points < 2) return;
    compare_text_add(text, "<polyline class=\"line c%zu d%zu\" points=\"", series->color % COLORS,
                     series->pattern % PATTERNS);
    for (size_t i = 0; i < series->count; i++) {
        if (!drawable(plot, series->x[i], series->y[i])) continue;
        compare_text_add(text, "%.1f,%.1f ", place(x, series->x[i]), place(y, series->y[i]));
    }
    compare_text_add(text, "\"/>\n");
}

static void draw_points(struct compare_text *text, const struct plot *plot,
                        const struct plot_series *series, const struct axis *x,
                        const struct axis *y) {
    for (size_t i = 0; i < series->count; i++) {
        char x_text[32], y_text[32];
        if (!drawable(plot, series->x[i], series->y[i])) continue;
        short_number(series->x[i], x_text, sizeof x_text);
        short_number(series->y[i], y_text, sizeof y_text);
        compare_text_add(text,
                         "<circle class=\"point c%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\"><title>",
                         series->color % COLORS, place(x, series->x[i]), place(y, series->y[i]));
        compare_text_escape(text, series->label != NULL ? series->label : "");
        compare_text_add(text, ": %s at %s</title></circle>\n", y_text, x_text);
    }
}

static void draw_marks(struct compare_text *text, const struct plot *plot, const struct axis *x) {
    for (size_t i = 0; i < plot->mark_count; i++) {
        double at = place(x, plot->marks[i].x);
        if (!(at > LEFT && at < WIDTH - RIGHT)) continue;
        bool left = at > (LEFT + WIDTH - RIGHT) / 2;
        compare_text_add(text,
                         "<line class=\"mark\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                         at, TOP, at, HEIGHT - BOTTOM);
        words(text, "marked", at + (left ? -5 : 5), TOP + 12 + 16 * (double)(i % 8),
              left ? "end" : "start", plot->marks[i].label);
    }
}

static void legend_entry(struct compare_text *text, size_t color, size_t pattern, bool line,
                         const char *label) {
    compare_text_add(text, "<li><svg class=\"swatch\" viewBox=\"0 0 30 12\">");
    if (line) {
        compare_text_add(text,
                         "<line class=\"line c%zu d%zu\" x1=\"1\" y1=\"6\" x2=\"29\" y2=\"6\"/>",
                         color % COLORS, pattern % PATTERNS);
    } else {
        compare_text_add(text, "<circle class=\"point c%zu\" cx=\"15\" cy=\"6\" r=\"4\"/>",
                         color % COLORS);
    }
    compare_text_add(text, "</svg> ");
    compare_text_escape(text, label);
    compare_text_add(text, "</li>\n");
}

void compare_plot_lines(struct compare_text *text, const struct plot *plot) {
    struct axis x, y;
    find_ranges(plot, &x, &y);
    open_figure(text, plot, HEIGHT);
    if (!isfinite(x.least)) {
        words(text, "axis", WIDTH / 2, HEIGHT / 2, "middle", "nothing to draw yet");
        compare_text_add(text, "</svg>\n");
        close_figure(text, plot);
        return;
    }
    axes(text, plot, &x, &y);
    draw_marks(text, plot, &x);
    for (size_t s = 0; s < plot->series_count; s++) {
        const struct plot_series *series = &plot->series[s];
        if (series->line) draw_line(text, plot, series, &x, &y);
        if (series->points) draw_points(text, plot, series, &x, &y);
    }
    compare_text_add(text, "</svg>\n<ul class=\"legend\">\n");
    for (size_t s = 0; s < plot->series_count; s++) {
        const struct plot_series *series = &plot->series[s];
        if (series->label == NULL) continue;
        legend_entry(text, series->color, series->pattern, series->line, series->label);
    }
    compare_text_add(text, "</ul>\n");
    close_figure(text, plot);
}

static double part_of(const struct plot_bar *bar, size_t part) {
    return isfinite(bar->parts[part]) && bar->parts[part] > 0 ? bar->parts[part] : 0;
}

static void draw_bar(struct compare_text *text, const struct plot_bar *bar, double y,
                     const struct axis *x, const char *const *parts, size_t part_count) {
    double begin = 0;
    words(text, "bar", MARGIN, y + 13, "start", bar->label);
    for (size_t part = 0; part < part_count; part++) {
        double value = part_of(bar, part);
        double left = place(x, begin), right = place(x, begin + value);
        compare_text_add(text,
                         "<rect class=\"fill c%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                         "height=\"14\"><title>",
                         (PART_COLOR + part) % COLORS, left, y + 18, right - left);
        compare_text_escape(text, bar->label);
        compare_text_add(text, ": %s %.4g</title></rect>\n", parts[part], value);
        begin += value;
    }
}

void compare_plot_bars(struct compare_text *text, const struct plot *plot,
                       const struct plot_bar *bars, size_t bar_count, const char *const *parts,
                       size_t part_count) {
    double height = TOP + BOTTOM + 38 * (double)(bar_count > 0 ? bar_count : 1);
    struct axis x = {0, 0, MARGIN, WIDTH - RIGHT, false};
    for (size_t i = 0; i < bar_count; i++) {
        double sum = 0;
        for (size_t part = 0; part < part_count; part++) {
            sum += part_of(&bars[i], part);
        }
        x.most = fmax(x.most, sum * 1.02);
    }
    open_figure(text, plot, height);
    if (x.most > 0) {
        x_ticks(text, &x, height - BOTTOM);
        for (size_t i = 0; i < bar_count; i++) {
            draw_bar(text, &bars[i], TOP + 38 * (double)i, &x, parts, part_count);
        }
        words(text, "axis", WIDTH / 2, height - 8, "middle", plot->x_label);
    } else {
        words(text, "axis", WIDTH / 2, height / 2, "middle", "nothing to draw yet");
    }
    compare_text_add(text, "</svg>\n<ul class=\"legend\">\n");
    for (size_t part = 0; part < part_count && x.most > 0; part++) {
        legend_entry(text, PART_COLOR + part, 0, true, parts[part]);
    }
    compare_text_add(text, "</ul>\n");
    close_figure(text, plot);
}
