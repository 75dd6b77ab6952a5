/* What derives from an options table for people: --help, --print-config, README's table. */
#include "base/options.h"

#include <ctype.h>
#include <string.h>

/* What stands for the value: N, X, or what kind of text it is, e.g. HOST:PORT. */
static void print_value_word(const struct option *row, FILE *out) {
    if (row->type == OPTION_FLAG) return;
    const char *word = row->unit[0] ? row->unit : "text";
    if (row->type == OPTION_INT) word = "n";
    if (row->type == OPTION_REAL) word = "x";
    fputc(' ', out);
    for (; *word; word++)
        fputc(toupper((unsigned char)*word), out);
}

static bool is_number(const struct option *row) {
    return row->type == OPTION_INT || row->type == OPTION_REAL;
}

static void print_option(const struct option *row, FILE *out) {
    char allowed[256];
    options_allowed(row, allowed, sizeof allowed);
    fprintf(out, "  --%s%s", row->type == OPTION_FLAG ? "[no-]" : "", row->name);
    print_value_word(row, out);
    fprintf(out, "\n      %s (", row->help);
    if (is_number(row)) fprintf(out, "%s; ", allowed);
    fprintf(out, "default %s)\n", row->default_text[0] ? row->default_text : "empty");
}

static void print_group(const struct options *options, unsigned role, bool agreed,
                        const char *title, FILE *out) {
    bool titled = false;
    for (size_t i = 0; i < options->count; i++) {
        const struct option *row = &options->table[i];
        if (!(row->roles & role) || row->agreed != agreed) continue;
        if (!titled) fprintf(out, "\n%s\n", title);
        titled = true;
        print_option(row, out);
    }
}

void options_print_help(const struct options *options, unsigned role, const char *usage,
                        FILE *out) {
    fprintf(out, "%s", usage);
    print_group(options, role, true,
                "Options of the job: give them to any process, the others learn them.", out);
    print_group(options, role, false, "Options of this process:", out);
    fprintf(out,
            "\nCommon options:\n"
            "  --config FILE\n"
            "      read options from a file of lines `name = value`\n"
            "  --print-config\n"
            "      print each option's value and where it is from, and exit\n"
            "  --version\n"
            "  --help\n"
            "\n"
            "An option --some-name may also be given as the variable RUBATO_SOME_NAME. Flags go\n"
            "before variables, variables before the config file, that before the defaults.\n");
}

/* A text in quotes, so that spaces, #, quotes and line ends come back as they were. */
static void print_quoted(const char *text, FILE *out) {
    static const char special[] = "\\\"\n\t\r", codes[] = "\\\"ntr";
    fputc('"', out);
    for (; *text; text++) {
        const char *found = strchr(special, *text);
        if (found) {
            fputc('\\', out);
            fputc(codes[found - special], out);
        } else {
            fputc(*text, out);
        }
    }
    fputc('"', out);
}

void options_print_config(const struct options *options, unsigned role, FILE *out) {
    static const char *const origins[] = {"default", "job", "file", "environment", "flag"};
    for (size_t i = 0; i < options->count; i++) {
        const struct option *row = &options->table[i];
        char text[OPTION_TEXT_MAX];
        if (!(row->roles & role)) continue;
        options_text(options, (int)i, text, sizeof text);
        fprintf(out, "%s = ", row->name);
        if (row->type == OPTION_TEXT) {
            print_quoted(text, out);
        } else {
            fputs(text, out);
        }
        fprintf(out, "  # %s\n", origins[options->origins[i]]);
    }
}

/* A bar would end the cell. */
static void print_cell(const char *text, FILE *out) {
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

void options_print_markdown(const struct options *options, FILE *out) {
    fprintf(out, "| option | default | allowed | same in the whole job | what it is |\n"
                 "|---|---|---|---|---|\n");
    for (size_t i = 0; i < options->count; i++) {
        const struct option *row = &options->table[i];
        char allowed[256] = "text";
        if (row->type == OPTION_FLAG) snprintf(allowed, sizeof allowed, "true, false");
        if (is_number(row)) options_allowed(row, allowed, sizeof allowed);
        fprintf(out, "| `--%s` | ", row->name);
        if (row->default_text[0]) fprintf(out, "`%s`", row->default_text);
        fprintf(out, " | %s | %s | ", allowed, row->agreed ? "yes" : "no");
        print_cell(row->help, out);
        fprintf(out, " |\n");
    }
}
