/* compare_plot.h - figures of the report: lines and stacked bars as inline SVG.
 *
 * A figure is well-formed XML with an id, a title, and a legend below it in HTML; colours come from
 * the page's style (classes c0 .. c7, repeated), so that it reads in light and dark. Line patterns
 * (classes d0 .. d3) tell series of one colour apart. Points carry their values as tooltips.
 * Set-up code; one thread.
 */
#ifndef RUBATO_TOOLS_COMPARE_PLOT_H
#define RUBATO_TOOLS_COMPARE_PLOT_H

#include "tools/compare_text.h"

#include <stdbool.h>
#include <stddef.h>

struct plot_series {
    const char *label;   /* NULL: not in the legend */
    const double *x, *y; /* [count]; values that are not finite are left out */
    size_t count;
    size_t color, pattern;
    bool line, points;
};

/* An upright line with a note. */
struct plot_mark {
    double x;
    const char *label;
};

struct plot {
    const char *id, *title, *x_label, *y_label;
    const char *note; /* below the figure; NULL: none */
    bool log_x, log_y;
    const struct plot_series *series; /* [series_count] */
    size_t series_count;
    const struct plot_mark *marks; /* [mark_count] */
    size_t mark_count;
};

/* A figure with axes; one that says so when there is no point to draw. */
void compare_plot_lines(struct compare_text *text, const struct plot *plot);

struct plot_bar {
    const char *label;
    const double *parts; /* [part_count] of the figure; not finite counts as 0 */
};

/* Lying bars, each of part_count parts in a row; `parts` are their names. */
void compare_plot_bars(struct compare_text *text, const struct plot *plot,
                       const struct plot_bar *bars, size_t bar_count, const char *const *parts,
                       size_t part_count);

#endif
