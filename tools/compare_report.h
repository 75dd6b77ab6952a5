/* compare_report.h - what a comparison leaves behind: results.jsonl, report.html, a printed table.
 *
 * results.jsonl (schema "rubato.compare/1") has a line for each run, with its settings, its outcome
 * and its series; all numbers of the table follow from it by the definitions of compare_table.h.
 * report.html is one file that needs nothing else: style and figures (compare_plot.h) are in it,
 * each cell of its table carries the full number (data-key, data-value). Both are rewritten after
 * each run, so that what an interrupted comparison leaves is of use. Set-up code; one thread.
 */
#ifndef RUBATO_TOOLS_COMPARE_REPORT_H
#define RUBATO_TOOLS_COMPARE_REPORT_H

#include "base/status.h"
#include "tools/compare_table.h"
#include "tools/compare_text.h"

#include <stdio.h>

struct compare_report {
    const struct compare_table *table;
    const char *folder;   /* where the files go */
    const char *settings; /* flags that are the same in all arms, for the reader; "" for none */
    bool paced;           /* some link has a limit */
};

/* Both files. IO, logged. */
enum status compare_report_write(const struct compare_report *report) WARN_UNUSED;

/* The table, and what its numbers are relative to. */
void compare_report_print(const struct compare_report *report, FILE *out);

/* The figures of the page, compare_figures.c. */
void compare_figures_add(struct compare_text *text, const struct compare_table *table);

/* What the table is relative to: baseline, its spread, target; a sentence each, plain text. */
void compare_report_basis(const struct compare_table *table, struct compare_text *text);

#endif
