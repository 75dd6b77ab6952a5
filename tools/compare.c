/* compare.c - `rubato compare`: the same training under different settings, side by side.
 *
 * Reads the lists, makes the grid of arms and seeds (compare_grid.h), runs them (compare_jobs.h) or
 * reads folders of runs that are there already (compare_read.h), and reports (compare_report.h).
 * All seeds of one round come before the next round's, so that what is there after any time says
 * about as much of each arm.
 */
#include "base/assert.h"
#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "kernels/threads.h"
#include "proto/job.h"
#include "tools/compare_arms.h"
#include "tools/compare_grid.h"
#include "tools/compare_jobs.h"
#include "tools/compare_report.h"
#include "tools/compare_table.h"
#include "tools/subcommand.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: rubato compare --data FILE [--push LIST] [--pull LIST] [--mode LIST] [--link LIST]\n"
    "                      [--arms FILE] [--seeds N] [--out FOLDER] [--resume] [--flag VALUE ...]\n"
    "       rubato compare RUN RUN ... [--out FOLDER] [--target LOSS]\n"
    "\n"
    "Trains the same model under every combination of the lists (an arm), with each seed, one\n"
    "after the other on this machine; then prints a table and writes report.html and\n"
    "results.jsonl. Or compares the folders of runs that are there already.\n"
    "A list is separated by commas, or by ; where a setting holds a comma that reads both ways:\n"
    "  --push none,bf16,int8          --push 'int8;bf16'          --push int8 --push bf16\n"
    "All other options of rubato launch are the same for all arms, but for those of --arms, a "
    "file\n"
    "with more arms: lines NAME: --option value ... of any options.\n"
    "With folders, only --out and --target go. A failed arm is reported, and the rest go on. "
    "Ctrl-C\n"
    "leaves a report of what there is; the same command with --resume goes on. Links of a --link\n"
    "list are paced by a token bucket in each process; the default is none.\n"
    "Exit code: 0, or 1 when a run failed, or 128 + n after signal n.\n"
    "\n"
    "examples:\n"
    "  rubato compare --data corpus.txt --steps 300 --push none,bf16,int8 --seeds 3 --workers 2\n"
    "  rubato compare --data corpus.txt --mode sync,async --link none,100mbit --out runs/links\n"
    "  rubato compare runs/first runs/second\n";

/* The job's options and our own, in one table. */
struct compare_config {
    struct job job; // first: the offsets of job_table hold
    char bin[OPTION_TEXT_MAX];
    char out[OPTION_TEXT_MAX];
    char arms[OPTION_TEXT_MAX];
    int64_t seeds, jobs;
    double target;
    bool resume, dry_run, pin;
};

#define AT(field) offsetof(struct compare_config, field)
static const struct option own_table[] = {
    {"bin", OPTION_TEXT, "", 0, 0, "",
     "folder of rubato-server and rubato-worker; empty: beside rubato, then PATH", false,
     JOB_LAUNCH, AT(bin), NULL},
    {"out", OPTION_TEXT, "", 0, 0, "",
     "folder of the report and of all runs; empty: a new one under runs/", false, JOB_LAUNCH,
     AT(out), NULL},
    {"arms", OPTION_TEXT, "", 0, 0, "",
     "file of more arms, after those of the lists: a line NAME: --option value ... each", false,
     JOB_LAUNCH, AT(arms), NULL},
    {"seeds", OPTION_INT, "1", 1, 100, "seeds", "seeds of each arm, counted up from --seed", false,
     JOB_LAUNCH, AT(seeds), NULL},
    {"jobs", OPTION_INT, "1", 1, 64, "jobs",
     "runs at once; more than one makes their times worthless", false, JOB_LAUNCH, AT(jobs), NULL},
    {"target", OPTION_REAL, "0", 0, 1000, "nats",
     "loss to reach, for time and bytes to it; 0: the baseline's last one", false, JOB_LAUNCH,
     AT(target), NULL},
    {"resume", OPTION_FLAG, "no", 0, 0, "",
     "keep the complete runs of --out that had the same options", false, JOB_LAUNCH, AT(resume),
     NULL},
    {"pin", OPTION_FLAG, "no", 0, 0, "",
     "give each worker cores of its own (its --cpus), --threads of them", false, JOB_LAUNCH,
     AT(pin), NULL},
    {"dry-run", OPTION_FLAG, "no", 0, 0, "", "print the arms and run nothing", false, JOB_LAUNCH,
     AT(dry_run), NULL},
};
#define OWN_COUNT (sizeof own_table / sizeof own_table[0])

struct compare {
    struct option table[OPTIONS_MAX];
    struct compare_config config;
    struct options options;
    struct compare_list lists[COMPARE_AXES];
    bool usual[COMPARE_AXES]; /* nobody gave the list: it has the option's default */
    struct compare_arm *arms;
    size_t arm_count, grid_count; /* the lists' come first */
    struct compare_setup *setups; /* [arm_count - grid_count] of the others */
    struct compare_run *runs;
    size_t run_count;
    char out[2 * OPTION_TEXT_MAX];
    struct compare_text settings;
    bool report_failed;
};

static int find_axis(const char *name) {
    for (int i = 0; i < COMPARE_AXES; i++) {
        if (strcmp(name, compare_axis_names[i]) == 0) return i;
    }
    return -1;
}

/* What a value of the axis may be: the option's own check. */
static option_check_fn *axis_check(size_t axis) {
    for (size_t i = 0; i < job_table_count; i++) {
        if (strcmp(job_table[i].name, compare_axis_names[axis]) == 0) return job_table[i].check;
    }
    return NULL;
}

/* In our table the axes' options hold lists. */
static void options_open(struct compare *compare) {
    ASSERT_OP(job_table_count + OWN_COUNT, <=, OPTIONS_MAX);
    memcpy(compare->table, job_table, job_table_count * sizeof *job_table);
    memcpy(compare->table + job_table_count, own_table, sizeof own_table);
    for (size_t i = 0; i < job_table_count; i++) {
        if (find_axis(compare->table[i].name) >= 0) compare->table[i].check = NULL;
    }
    options_init(&compare->options, compare->table, job_table_count + OWN_COUNT, &compare->config);
}

/* ---- the command line ---- */

/* Takes --push and its like out of argv, into the lists: a flag may come more than once, and be
 * longer than an option's text. */
static enum status take_lists(struct compare *compare, int *argc, char **argv) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        char name[16] = "";
        const char *value = NULL;
        size_t length = strncmp(argv[i], "--", 2) == 0 ? strcspn(argv[i] + 2, "=") : 0;
        if (length > 0 && length < sizeof name) memcpy(name, argv[i] + 2, length);
        int axis = find_axis(name);
        if (axis < 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (argv[i][2 + length] == '=') {
            value = argv[i] + 3 + length;
        } else if (i + 1 < *argc) {
            value = argv[++i];
        } else {
            log_error("--%s wants a value", name);
            return STATUS_INVALID;
        }
        TRY(compare_list_add(&compare->lists[axis], name, axis_check((size_t)axis), value));
    }
    *argc = kept;
    argv[kept] = NULL;
    return STATUS_OK;
}

/* The lists that no flag gave: from a variable, a config file, or the default. */
static enum status fill_lists(struct compare *compare) {
    for (size_t axis = 0; axis < COMPARE_AXES; axis++) {
        char text[OPTION_TEXT_MAX];
        int index = options_find(&compare->options, compare_axis_names[axis]);
        if (compare->lists[axis].count > 0) continue;
        options_text(&compare->options, index, text, sizeof text);
        compare->usual[axis] = compare->options.origins[index] == ORIGIN_DEFAULT;
        TRY(compare_list_add(&compare->lists[axis], compare_axis_names[axis], axis_check(axis),
                             text));
    }
    return STATUS_OK;
}

static bool is_given(const struct options *options, const char *name) {
    int index = options_find(options, name);
    return index >= 0 && options->origins[index] != ORIGIN_DEFAULT;
}

/* A list stands in a config file as it may stand in a flag. */
static int print_config(struct compare *compare) {
    for (size_t axis = 0; axis < COMPARE_AXES; axis++) {
        const struct compare_list *list = &compare->lists[axis];
        struct compare_text text = {0};
        char why[512];
        if (list->count == 0) continue;
        for (size_t i = 0; i < list->count; i++) {
            compare_text_add(&text, "%s%s", i > 0 ? ";" : "", list->values[i]);
        }
        enum status status = options_set(&compare->options,
                                         options_find(&compare->options, compare_axis_names[axis]),
                                         text.bytes, ORIGIN_FLAG, why, sizeof why);
        compare_text_free(&text);
        if (status != STATUS_OK) {
            log_error("--%s: %s", compare_axis_names[axis], why);
            return EXIT_CODE_USAGE;
        }
    }
    options_print_config(&compare->options, JOB_LAUNCH, stdout);
    return EXIT_CODE_OK;
}

/* What each run is told by ourselves, or what makes no sense for many runs. */
static bool is_ours(const char *name) {
    return compare_arms_owned(name) || find_axis(name) >= 0;
}

static enum status check_options(const struct compare *compare) {
    const struct job *job = &compare->config.job;
    const char *refused = job->run_dir[0] != '\0'  ? "run-dir"
                          : job->listen[0] != '\0' ? "listen"
                          : job->stay              ? "stay"
                                                   : NULL;
    if (refused != NULL) {
        log_error("--%s: not here, where many jobs run; --out says where they go", refused);
        return STATUS_INVALID;
    }
    if (compare->config.resume && compare->config.out[0] == '\0') {
        log_error("--resume wants the --out FOLDER of the comparison to go on with");
        return STATUS_INVALID;
    }
    if (compare->config.pin && compare->config.jobs > 1) {
        log_error("--pin: not with --jobs %" PRId64 ", whose jobs would all pin the same cores",
                  compare->config.jobs);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

/* With folders of runs nothing is run: a flag that says how would be passed over in silence. What
 * comes from a variable or a config file is for other programs too, and may be there. */
static enum status check_folder_options(const struct compare *compare) {
    const char *refused = NULL;
    for (size_t axis = 0; axis < COMPARE_AXES; axis++) {
        if (compare->lists[axis].count > 0) refused = compare_axis_names[axis];
    }
    for (size_t i = 0; i < compare->options.count; i++) {
        const char *name = compare->table[i].name;
        if (compare->options.origins[i] == ORIGIN_FLAG && strcmp(name, "out") != 0 &&
            strcmp(name, "target") != 0) {
            refused = name;
        }
    }
    if (refused == NULL) return STATUS_OK;
    log_error("--%s: not with folders of runs, which are compared as they are; only --out and "
              "--target go with them",
              refused);
    return STATUS_INVALID;
}

/* The flags of one arm's runs, as launch takes them. */
static void add_options(const struct compare *compare, const struct options *options,
                        struct launch_command *command) {
    const struct compare_config *config = &compare->config;
    const struct job *job = options->config;
    for (size_t i = 0; i < job_table_count; i++) {
        const struct option *option = &job_table[i];
        char value[OPTION_TEXT_MAX];
        if (options->origins[i] == ORIGIN_DEFAULT || !(option->roles & JOB_LAUNCH) ||
            is_ours(option->name)) {
            continue;
        }
        options_text(options, (int)i, value, sizeof value);
        if (option->type == OPTION_FLAG) {
            bool on = *(const bool *)((const char *)job + option->offset);
            launch_command_add(command, "--%s%s", on ? "" : "no-", option->name);
        } else {
            launch_command_add(command, "--%s=%s", option->name, value);
        }
    }
    if (config->pin) launch_command_add(command, "--pin");
    // A curve wants points, whatever the number of steps; a sample is of no use here.
    if (!is_given(options, "eval-every")) {
        int64_t every = job->steps / 10;
        launch_command_add(command, "--eval-every=%" PRId64, every > 0 ? every : 1);
    }
    if (!is_given(options, "sample-tokens")) launch_command_add(command, "--sample-tokens=0");
    if (!is_given(options, "threads")) {
        int64_t threads = threads_available() / (job->workers * config->jobs);
        launch_command_add(command, "--threads=%" PRId64, threads > 0 ? threads : 1);
    }
}

/* The options of an arm of the lists, with what a preset of --push stands for where nobody gave it;
 * false: it is none that sets options. options->config is the caller's. */
static bool expand_preset(const struct compare *compare, const struct compare_arm *arm,
                          struct options *options, struct job *job) {
    char why[256];
    int push = options_find(&compare->options, compare_axis_names[COMPARE_PUSH]);
    *options = compare->options;
    *job = *(const struct job *)compare->options.config;
    options->config = job;
    for (size_t axis = 0; axis < COMPARE_AXES; axis++) {
        int index = options_find(options, compare_axis_names[axis]);
        options->origins[index] = compare->usual[axis] ? ORIGIN_DEFAULT : ORIGIN_FLAG;
    }
    return options_set(options, push, arm->axis[COMPARE_PUSH], ORIGIN_FLAG, why, sizeof why) ==
               STATUS_OK &&
           job_expand_preset(options, NULL, why, sizeof why);
}

/* Such an arm's places on the axes. */
static void place_presets(struct compare *compare) {
    struct job *job = memory_zeroed(1, sizeof *job);
    struct options *options = memory_zeroed(1, sizeof *options);
    for (size_t i = 0; i < compare->grid_count; i++) {
        struct compare_arm *arm = &compare->arms[i];
        if (!expand_preset(compare, arm, options, job)) continue;
        (void)snprintf(arm->axis[COMPARE_PULL], OPTION_TEXT_MAX, "%s", job->pull);
        (void)snprintf(arm->axis[COMPARE_MODE], OPTION_TEXT_MAX, "%s", job->mode);
    }
    free(options);
    free(job);
}

/* The options of its preset that are no axes. */
static void add_preset(const struct compare *compare, const struct compare_arm *arm,
                       struct launch_command *command) {
    struct job *job = memory_zeroed(1, sizeof *job);
    struct options *options = memory_zeroed(1, sizeof *options);
    bool expanded = expand_preset(compare, arm, options, job);
    for (size_t i = 0; i < options->count && expanded; i++) {
        char value[OPTION_TEXT_MAX];
        if (options->origins[i] != ORIGIN_JOB || find_axis(options->table[i].name) >= 0) continue;
        options_text(options, (int)i, value, sizeof value);
        launch_command_add(command, "--%s=%s", options->table[i].name, value);
    }
    free(options);
    free(job);
}

static void add_flags(void *context, size_t arm, struct launch_command *command) {
    const struct compare *compare = context;
    if (arm < compare->grid_count) {
        add_options(compare, &compare->options, command);
        add_preset(compare, &compare->arms[arm], command);
    } else {
        add_options(compare, &compare->setups[arm - compare->grid_count].options, command);
    }
}

static void note_settings(struct compare *compare) {
    struct launch_command *command = memory_zeroed(1, sizeof *command);
    add_options(compare, &compare->options, command);
    for (int i = 0; i < command->argc; i++) {
        compare_text_add(&compare->settings, "%s%s", i > 0 ? " " : "", command->argv[i]);
    }
    free(command);
}

/* ---- runs, reports ---- */

static bool any_paced(const struct compare *compare) {
    for (size_t i = 0; i < compare->arm_count; i++) {
        if (strcmp(compare->arms[i].axis[COMPARE_LINK], "none") != 0) return true;
    }
    return false;
}

static enum status report(const struct compare *compare, FILE *print) {
    struct compare_table table = {.arms = compare->arms,
                                  .arm_count = compare->arm_count,
                                  .runs = compare->runs,
                                  .run_count = compare->run_count};
    compare_table_make(&table, compare->config.target);
    struct compare_report all = {.table = &table,
                                 .folder = compare->out,
                                 .settings =
                                     compare->settings.used > 0 ? compare->settings.bytes : "",
                                 .paced = any_paced(compare)};
    enum status status = compare_report_write(&all);
    if (print != NULL) compare_report_print(&all, print);
    compare_table_free(&table);
    return status;
}

static void report_again(void *context) {
    struct compare *compare = context;
    if (report(compare, NULL) != STATUS_OK) compare->report_failed = true;
}

/* --out, or a new folder; one with other results in it is not overwritten, and `advice` says how to
 * go on then. */
static enum status open_folder(struct compare *compare, const char *advice) {
    char path[4096], stamp[64];
    time_t now = time(NULL);
    struct tm parts;
    (void)snprintf(compare->out, sizeof compare->out, "%s", compare->config.out);
    if (compare->out[0] == '\0') {
        (void)localtime_r(&now, &parts);
        (void)strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &parts);
        (void)snprintf(compare->out, sizeof compare->out, "runs/compare-%s-%ld", stamp,
                       (long)getpid());
    }
    TRY(files_make_folder(compare->out));
    TRY(files_join(path, sizeof path, compare->out, "results.jsonl"));
    if (access(path, F_OK) == 0 && !compare->config.resume) {
        log_error("%s is there already: %s", path, advice);
        return STATUS_DENIED;
    }
    return STATUS_OK;
}

static void make_runs(struct compare *compare) {
    size_t seeds = (size_t)compare->config.seeds;
    compare->run_count = compare->arm_count * seeds;
    compare->runs = memory_zeroed(compare->run_count, sizeof *compare->runs);
    for (size_t i = 0; i < compare->run_count; i++) {
        struct compare_run *run = &compare->runs[i];
        run->arm = i % compare->arm_count;
        run->seed = compare->config.job.seed + (int64_t)(i / compare->arm_count);
        (void)snprintf(run->folder, sizeof run->folder, "%s/arms/%s_seed%" PRId64, compare->out,
                       compare->arms[run->arm].name, run->seed);
    }
}

static void print_arms(const struct compare *compare) {
    for (size_t i = 0; i < compare->arm_count; i++) {
        const struct compare_arm *arm = &compare->arms[i];
        if (i >= compare->grid_count) {
            printf("%s: %s\n", arm->label, arm->options);
            continue;
        }
        printf("push=%s pull=%s mode=%s link=%s\n", arm->axis[COMPARE_PUSH],
               arm->axis[COMPARE_PULL], arm->axis[COMPARE_MODE], arm->axis[COMPARE_LINK]);
    }
}

/* The arms of --arms, behind those of the lists. */
static enum status add_arms(struct compare *compare) {
    struct compare_arm *more = NULL;
    size_t count = 0, grid = compare->grid_count;
    enum status status = compare_arms_read(compare->config.arms, &compare->options, compare->lists,
                                           &more, &compare->setups, &count);
    for (size_t i = 0; i < grid * count && status == STATUS_OK; i++) {
        const struct compare_arm *arm = &compare->arms[i % grid], *other = &more[i / grid];
        if (strcmp(arm->label, other->label) == 0 || strcmp(arm->name, other->name) == 0) {
            log_error("--arms: '%s' is the name of an arm of the lists", other->label);
            status = STATUS_INVALID;
        }
    }
    if (status == STATUS_OK) {
        struct compare_arm *all = memory_zeroed(grid + count, sizeof *all);
        memcpy(all, compare->arms, grid * sizeof *all);
        memcpy(all + grid, more, count * sizeof *all);
        free(compare->arms);
        compare->arms = all;
        compare->arm_count = grid + count;
        compare_grid_label(all, compare->arm_count);
    }
    free(more);
    return status;
}

static enum status make_arms(struct compare *compare) {
    TRY(check_options(compare));
    TRY(fill_lists(compare));
    TRY(compare_grid_arms(compare->lists, &compare->arms, &compare->arm_count));
    compare->grid_count = compare->arm_count;
    place_presets(compare);
    compare_grid_label(compare->arms, compare->arm_count);
    return compare->config.arms[0] != '\0' ? add_arms(compare) : STATUS_OK;
}

static int run_grid(struct compare *compare) {
    struct compare_jobs jobs;
    struct compare_jobs_config config = {.arms = compare->arms,
                                         .jobs = compare->config.jobs,
                                         .bin = compare->config.bin,
                                         .resume = compare->config.resume,
                                         .progress = compare->config.job.progress,
                                         .flags = add_flags,
                                         .ended = report_again,
                                         .context = compare};
    if (open_folder(compare, "give another --out, or --resume to go on with it") != STATUS_OK) {
        return EXIT_CODE_CREATE;
    }
    make_runs(compare);
    note_settings(compare);
    config.runs = compare->runs;
    config.run_count = compare->run_count;
    if (compare_jobs_run(&jobs, &config) != STATUS_OK) return EXIT_CODE_INTERNAL;
    enum status status = report(compare, stdout);
    if (jobs.asked != 0) {
        log_warn("interrupted: the same command with --resume --out %s goes on", compare->out);
        return 128 + jobs.asked;
    }
    if (status != STATUS_OK || compare->report_failed) return EXIT_CODE_IO;
    return jobs.failed > 0 ? EXIT_CODE_TRAINING : EXIT_CODE_OK;
}

static int compare_grid(struct compare *compare) {
    const char *data = compare->config.job.data;
    if (make_arms(compare) != STATUS_OK) return EXIT_CODE_USAGE;
    if (compare->config.dry_run) {
        print_arms(compare);
        return EXIT_CODE_OK;
    }
    if (data[0] == '\0') {
        log_error("--data is missing: give the file to train on, or folders of runs to compare");
        return EXIT_CODE_USAGE;
    }
    if (strpbrk(data, ",*?[") == NULL && access(data, R_OK) != 0) {
        log_error("--data '%s': %s", data, strerror(errno));
        return EXIT_CODE_NO_INPUT;
    }
    return run_grid(compare);
}

/* Runs that are there already: each is an arm of its own, and its folder tells it from others. */
static int compare_folders(struct compare *compare, size_t count, char **folders) {
    compare->arm_count = compare->run_count = count;
    compare->arms = memory_zeroed(count, sizeof *compare->arms);
    compare->runs = memory_zeroed(count, sizeof *compare->runs);
    for (size_t i = 0; i < count; i++) {
        struct compare_run *run = &compare->runs[i];
        struct compare_arm *arm = &compare->arms[i];
        run->arm = arm->group = i;
        (void)snprintf(run->folder, sizeof run->folder, "%s", folders[i]);
        (void)snprintf(arm->label, sizeof arm->label, "%s", folders[i]);
        if (compare_read(run) != STATUS_OK) {
            log_error("%s: %s", folders[i], run->why);
            return EXIT_CODE_NO_INPUT;
        }
        memcpy(arm->axis, run->axis, sizeof arm->axis);
        run->state = COMPARE_OK;
    }
    if (open_folder(compare, "give another --out") != STATUS_OK) return EXIT_CODE_CREATE;
    return report(compare, stdout) == STATUS_OK ? EXIT_CODE_OK : EXIT_CODE_IO;
}

static int compare_checked(struct compare *compare, int argc, char **argv) {
    size_t folders = 0;
    while ((int)folders + 1 < argc && strncmp(argv[folders + 1], "--", 2) != 0) {
        folders++;
    }
    // The folders go to the front, and argv[0] where the last of them was.
    char *name = argv[0];
    memmove(argv, argv + 1, folders * sizeof *argv);
    argv[folders] = name;
    argc -= (int)folders;
    if (take_lists(compare, &argc, argv + folders) != STATUS_OK ||
        options_parse(&compare->options, JOB_LAUNCH, argc, argv + folders) != STATUS_OK) {
        return EXIT_CODE_USAGE;
    }
    if (options_wants(argc, argv + folders, "--print-config")) return print_config(compare);
    if (folders == 0) return compare_grid(compare);
    if (folders == 1) {
        log_error("one run is no comparison: give the folders of two or more");
        return EXIT_CODE_USAGE;
    }
    if (check_folder_options(compare) != STATUS_OK) return EXIT_CODE_USAGE;
    return compare_folders(compare, folders, argv);
}

static void compare_free(struct compare *compare) {
    for (size_t i = 0; compare->runs != NULL && i < compare->run_count; i++) {
        compare_run_free(&compare->runs[i]);
    }
    compare_text_free(&compare->settings);
    free(compare->runs);
    free(compare->setups);
    free(compare->arms);
    free(compare);
}

static int compare_run_all(int argc, char **argv) {
    struct compare *compare = memory_zeroed(1, sizeof *compare);
    int code = EXIT_CODE_OK;
    options_open(compare);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&compare->options, JOB_LAUNCH, usage, stdout);
    } else {
        code = compare_checked(compare, argc, argv);
    }
    compare_free(compare);
    return code;
}

const struct subcommand compare_subcommand = {
    .name = "compare",
    .summary = "train under many settings, and report their losses, bytes and times",
    .run = compare_run_all,
};
