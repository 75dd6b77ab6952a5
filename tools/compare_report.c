#include "tools/compare_report.h"

#include "base/files.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const char style[] =
    ":root{--paper:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d8dee4;--band:#f4f6f8;"
    "--c0:#0072b2;--c1:#d55e00;--c2:#00875a;--c3:#b3468a;--c4:#b07d00;--c5:#2c9fd6;--c6:#6b4fbb;"
    "--c7:#7a6a53;color-scheme:light dark}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e8eb;--soft:#9aa4af;"
    "--line:#333a42;--band:#1d2228;--c0:#58b0ee;--c1:#ff8f4d;--c2:#3ecf9a;--c3:#e58fc2;"
    "--c4:#e8b73a;--c5:#8fd3f8;--c6:#ab94f0;--c7:#c2ae92}}\n"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1240px;padding:16px;background:"
    "var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.15rem;margin:1.6em 0 .5em}"
    "p{margin:.4em 0}.note,.basis{color:var(--soft);font-size:.88rem}"
    ".warn{border-left:4px solid var(--c1);padding:.3em .8em;background:var(--band)}\n"
    ".wide{overflow-x:auto;border:1px solid var(--line);border-radius:6px}"
    "table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums;width:100%}"
    "th,td{padding:.35em .55em;text-align:right;white-space:nowrap;border-bottom:1px solid "
    "var(--line)}thead th{white-space:normal;vertical-align:bottom;font-weight:600;color:"
    "var(--soft);}tbody tr:last-child>*{border-bottom:0}"
    "th:first-child{text-align:left;position:sticky;left:0;background:var(--paper);color:"
    "var(--ink)}tr.base>*{background:var(--band)}td.why{text-align:left;white-space:normal}\n"
    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));"
    "gap:14px}figure{margin:0;padding:12px;border:1px solid var(--line);border-radius:6px}"
    "figcaption{font-weight:600}figure>svg{display:block;width:100%;height:auto}\n"
    "text{fill:var(--soft);font:13px system-ui,sans-serif}text.axis{fill:var(--ink)}"
    "text.bar{fill:var(--ink)}text.marked{font-size:11.5px;fill:var(--ink)}"
    ".grid{stroke:var(--line);stroke-width:1}.mark{stroke:var(--soft);stroke-width:1.2;"
    "stroke-dasharray:2 3}.line{fill:none;stroke:var(--c);stroke-width:2}"
    ".point,.fill{fill:var(--c)}.d1{stroke-dasharray:7 4}.d2{stroke-dasharray:2 3}"
    ".d3{stroke-dasharray:9 3 2 3}\n"
    ".c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}"
    ".c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}\n"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:6px 0 0;padding:0;"
    "font-size:.84rem}.swatch{width:30px;height:12px;vertical-align:middle}"
    "code{overflow-wrap:anywhere;font-size:.86rem}@media print{.wide{overflow:visible}}\n";

static const char *state_name(enum compare_state state) {
    static const char *const names[] = {[COMPARE_PENDING] = "pending",
                                        [COMPARE_RUNNING] = "running",
                                        [COMPARE_OK] = "ok",
                                        [COMPARE_FAILED] = "failed"};
    return names[state];
}

static const char *baseline_label(const struct compare_table *table) {
    return table->arms[table->baseline].label;
}

void compare_report_basis(const struct compare_table *table, struct compare_text *text) {
    const struct compare_row *row = &table->rows[table->baseline];
    compare_text_add(text, "baseline: %s (%s), %zu seed%s finished", baseline_label(table),
                     table->baseline_is_bf16 ? "bf16 both ways"
                                             : "the first arm, as none has bf16 both ways",
                     row->ok, row->ok == 1 ? "" : "s");
    if (isfinite(table->baseline_sd)) {
        compare_text_add(text, ", standard deviation of its loss over seeds %.4f (n = %zu)",
                         table->baseline_sd, row->ok);
    } else {
        compare_text_add(text, "; with fewer than two the spread over seeds is not known");
    }
    compare_text_add(text, "\n");
    if (isfinite(table->target)) {
        compare_text_add(text, "target loss: %.4f\n", table->target);
    }
    if (table->steps_differ) {
        compare_text_add(text,
                         "the runs differ in length: losses are compared at step %.0f, the "
                         "last that all have reached\n",
                         table->equal_step);
    }
}

/* ---- results.jsonl ---- */

static void add_member(struct compare_text *text, const char *name, const char *value) {
    compare_text_add(text, ",\"%s\":", name);
    compare_text_quote(text, value);
}

static void add_number(struct compare_text *text, const char *name, double value) {
    compare_text_add(text, ",\"%s\":", name);
    compare_text_number(text, value, 17);
}

/* A member of each step as an array; left out where no step knows it. */
static void add_series(struct compare_text *text, const struct compare_run *run, const char *name,
                       size_t offset) {
    bool known = false;
    for (size_t i = 0; i < run->trace_count && !known; i++) {
        known = isfinite(*(const double *)((const char *)&run->trace[i] + offset));
    }
    if (!known) return;
    compare_text_add(text, ",\"%s\":[", name);
    for (size_t i = 0; i < run->trace_count; i++) {
        if (i > 0) compare_text_add(text, ",");
        compare_text_number(text, *(const double *)((const char *)&run->trace[i] + offset), 9);
    }
    compare_text_add(text, "]");
}

static void add_trace(struct compare_text *text, const struct compare_run *run) {
    static const struct {
        const char *name;
        size_t offset;
    } series[] = {{"step", offsetof(struct compare_step, step)},
                  {"loss", offsetof(struct compare_step, loss)},
                  {"forward_ms", offsetof(struct compare_step, forward_ms)},
                  {"backward_ms", offsetof(struct compare_step, backward_ms)},
                  {"wait_ms", offsetof(struct compare_step, wait_ms)},
                  {"codec_ms", offsetof(struct compare_step, codec_ms)},
                  {"push_bytes", offsetof(struct compare_step, push_bytes)},
                  {"pull_bytes", offsetof(struct compare_step, pull_bytes)},
                  {"residual_norm", offsetof(struct compare_step, residual_norm)},
                  {"codec_bytes", offsetof(struct compare_step, codec_bytes)}};
    for (size_t i = 0; i < sizeof series / sizeof series[0]; i++) {
        add_series(text, run, series[i].name, series[i].offset);
    }
    compare_text_add(text, ",\"val\":[");
    for (size_t i = 0; i < run->validation_count; i++) {
        compare_text_add(text, "%s[%.17g,%.9g]", i > 0 ? "," : "", run->validations[i].step,
                         run->validations[i].loss);
    }
    compare_text_add(text, "]");
}

static void add_result(struct compare_text *text, const struct compare_table *table,
                       const struct compare_run *run) {
    const struct compare_arm *arm = &table->arms[run->arm];
    compare_text_add(text, "{\"schema\":\"rubato.compare/1\"");
    add_member(text, "arm", arm->label);
    for (size_t i = 0; i < COMPARE_AXES; i++) {
        add_member(text, compare_axis_names[i], arm->axis[i]);
    }
    if (arm->options[0] != '\0') add_member(text, "options", arm->options);
    compare_text_add(text, ",\"seed\":%lld", (long long)run->seed);
    add_member(text, "state", state_name(run->state));
    add_member(text, "folder", run->folder);
    if (run->state == COMPARE_FAILED) add_member(text, "why", run->why);
    compare_text_add(text, ",\"baseline\":%s", run->arm == table->baseline ? "true" : "false");
    add_number(text, "target", table->target);
    if (run->state == COMPARE_OK) {
        add_number(text, "values", run->values);
        add_number(text, "workers", run->workers);
        add_number(text, "servers", run->servers);
        add_number(text, "steps", run->steps);
        add_number(text, "step_tokens", run->step_tokens);
        add_trace(text, run);
    }
    compare_text_add(text, "}\n");
}

/* ---- report.html ---- */

static const char *why_failed(const struct compare_table *table, size_t arm, const char **folder) {
    for (size_t i = 0; i < table->run_count; i++) {
        if (table->runs[i].arm == arm && table->runs[i].state == COMPARE_FAILED) {
            *folder = table->runs[i].folder;
            return table->runs[i].why;
        }
    }
    return NULL;
}

static void add_row(struct compare_text *text, const struct compare_table *table, size_t arm) {
    bool base = arm == table->baseline;
    compare_text_add(text, "<tr%s><th scope=\"row\">", base ? " class=\"base\"" : "");
    compare_text_escape(text, table->arms[arm].label);
    compare_text_add(text, "%s</th>", base ? " (baseline)" : "");
    for (size_t column = 0; column < COMPARE_COLUMNS; column++) {
        char cell[64];
        double value = table->rows[arm].value[column];
        if (!compare_table_has(table, column)) continue;
        compare_table_cell(table, arm, column, cell, sizeof cell);
        compare_text_add(text, "<td data-key=\"%s\" data-value=\"", compare_columns[column].key);
        if (isfinite(value)) compare_text_number(text, value, 17);
        compare_text_add(text, "\">%s</td>", cell);
    }
    compare_text_add(text, "</tr>\n");
}

static void add_table(struct compare_text *text, const struct compare_table *table) {
    compare_text_add(text, "<div class=\"wide\"><table id=\"table\">\n<thead><tr><th>arm</th>");
    for (size_t column = 0; column < COMPARE_COLUMNS; column++) {
        if (!compare_table_has(table, column)) continue;
        compare_text_add(text, "<th>%s</th>", compare_columns[column].title);
    }
    compare_text_add(text, "</tr></thead>\n<tbody>\n");
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        add_row(text, table, arm);
    }
    compare_text_add(text, "</tbody></table></div>\n");
}

/* What the arms of --arms are. */
static void add_own_options(struct compare_text *text, const struct compare_table *table) {
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        if (table->arms[arm].options[0] == '\0') continue;
        compare_text_add(text, "<p class=\"note\">");
        compare_text_escape(text, table->arms[arm].label);
        compare_text_add(text, ": <code>");
        compare_text_escape(text, table->arms[arm].options);
        compare_text_add(text, "</code></p>\n");
    }
}

static void add_failures(struct compare_text *text, const struct compare_table *table) {
    size_t pending = 0;
    for (size_t i = 0; i < table->run_count; i++) {
        const struct compare_run *run = &table->runs[i];
        pending += run->state == COMPARE_PENDING || run->state == COMPARE_RUNNING ? 1 : 0;
        if (run->state != COMPARE_FAILED) continue;
        compare_text_add(text, "<p class=\"warn\">failed: ");
        compare_text_escape(text, table->arms[run->arm].label);
        compare_text_add(text, " seed %lld: ", (long long)run->seed);
        compare_text_escape(text, run->why);
        compare_text_add(text, "; see log.txt in <code>");
        compare_text_escape(text, run->folder);
        compare_text_add(text, "</code></p>\n");
    }
    if (pending > 0) {
        compare_text_add(text,
                         "<p class=\"warn\">not complete: %zu of %zu runs are still to come; the "
                         "same command with <code>--resume</code> makes them</p>\n",
                         pending, table->run_count);
    }
}

static void add_basis(struct compare_text *text, const struct compare_report *report) {
    struct compare_text basis = {0};
    compare_report_basis(report->table, &basis);
    char *rest = basis.bytes;
    for (char *end; rest != NULL && (end = strchr(rest, '\n')) != NULL; rest = end + 1) {
        *end = '\0';
        compare_text_add(text, "<p class=\"basis\">");
        compare_text_escape(text, rest);
        compare_text_add(text, "</p>\n");
    }
    compare_text_free(&basis);
    if (report->paced) {
        compare_text_add(text, "<p class=\"basis\">Links are paced by a token bucket in each "
                               "process, outgoing and incoming apart; see docs/COMPARE.md for "
                               "real shaping.</p>\n");
    }
}

static void add_definitions(struct compare_text *text) {
    compare_text_add(
        text,
        "<h2>What the numbers are</h2>\n"
        "<p class=\"note\">Loss: mean over the seeds, at the same step for all arms; its "
        "difference to the baseline's is taken seed by seed. Compare it with its standard error "
        "and with the deviation over the seeds before you believe it. Bytes: of one worker, as its "
        "data channel counts them, headers included; the ratios are to 4 (f32) or 2 (bf16) bytes a "
        "value; at the end: of the last tenth of the steps, when a dense start is over. Step "
        "time: forward, backward and exposed wait of worker 0; validation and the first tenth of "
        "the steps (10 at most) are left out. To the target: where the mean curve first meets the "
        "target loss. Every number can be made again from results.jsonl.</p>\n");
}

static void make_page(struct compare_text *text, const struct compare_report *report) {
    compare_text_add(text,
                     "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                     "<title>rubato compare</title>\n<style>\n%s</style>\n</head>\n<body>\n"
                     "<h1>rubato compare: %zu arms, %zu runs</h1>\n",
                     style, report->table->arm_count, report->table->run_count);
    if (report->settings[0] != '\0') {
        compare_text_add(text, "<p class=\"note\">the same in all arms, where they say nothing of "
                               "their own: <code>");
        compare_text_escape(text, report->settings);
        compare_text_add(text, "</code></p>\n");
    }
    add_failures(text, report->table);
    add_basis(text, report);
    add_table(text, report->table);
    add_own_options(text, report->table);
    compare_text_add(text, "<h2>Figures</h2>\n");
    compare_figures_add(text, report->table);
    add_definitions(text);
    compare_text_add(text, "</body>\n</html>\n");
}

enum status compare_report_write(const struct compare_report *report) {
    char results[4096], page[4096];
    struct compare_text text = {0};
    TRY(files_join(results, sizeof results, report->folder, "results.jsonl"));
    TRY(files_join(page, sizeof page, report->folder, "report.html"));
    for (size_t i = 0; i < report->table->run_count; i++) {
        add_result(&text, report->table, &report->table->runs[i]);
    }
    enum status status = compare_text_write(&text, results);
    text.used = 0;
    if (status == STATUS_OK) {
        make_page(&text, report);
        status = compare_text_write(&text, page);
    }
    compare_text_free(&text);
    return status;
}

/* ---- the printed table ---- */

static int cell_width(const struct compare_table *table, size_t column) {
    size_t width = strlen(compare_columns[column].heading);
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        char cell[64];
        compare_table_cell(table, arm, column, cell, sizeof cell);
        width = strlen(cell) > width ? strlen(cell) : width;
    }
    return (int)width;
}

static void print_table(const struct compare_table *table, FILE *out) {
    int widths[COMPARE_COLUMNS];
    int label = 3;
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        int length = (int)strlen(table->arms[arm].label);
        label = length > label ? length : label;
    }
    fprintf(out, "%-*s", label, "arm");
    for (size_t column = 0; column < COMPARE_COLUMNS; column++) {
        widths[column] = cell_width(table, column);
        if (!compare_table_has(table, column)) continue;
        fprintf(out, "  %*s", widths[column], compare_columns[column].heading);
    }
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        fprintf(out, "\n%-*s", label, table->arms[arm].label);
        for (size_t column = 0; column < COMPARE_COLUMNS; column++) {
            char cell[64];
            if (!compare_table_has(table, column)) continue;
            compare_table_cell(table, arm, column, cell, sizeof cell);
            fprintf(out, "  %*s", widths[column], cell);
        }
    }
    fputc('\n', out);
}

void compare_report_print(const struct compare_report *report, FILE *out) {
    const struct compare_table *table = report->table;
    struct compare_text basis = {0};
    print_table(table, out);
    compare_report_basis(table, &basis);
    fputs(basis.bytes, out);
    compare_text_free(&basis);
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        if (table->arms[arm].options[0] == '\0') continue;
        fprintf(out, "%s: %s\n", table->arms[arm].label, table->arms[arm].options);
    }
    if (report->paced) {
        fputs("links are paced by a token bucket in each process, outgoing and incoming apart\n",
              out);
    }
    for (size_t arm = 0; arm < table->arm_count; arm++) {
        const char *folder = NULL;
        const char *why = why_failed(table, arm, &folder);
        if (why != NULL)
            fprintf(out, "failed: %s: %s; see %s\n", table->arms[arm].label, why, folder);
    }
    fprintf(out, "report: %s/report.html\n", report->folder);
}
