/* job_preset.c - what a preset of --push stands for besides a codec. */
#include "base/assert.h"
#include "proto/codec_spec.h"
#include "proto/job.h"

#include <stdio.h>
#include <string.h>

enum { MORE_MAX = 4 };

/* A preset without a row is a codec alone. */
static const struct preset {
    const char *name;
    struct {
        const char *option, *value;
    } more[MORE_MAX];
} presets[] = {
    {"thin", {{"optimizer", "worker:adamw"}}},
    {"wan", {{"mode", "local:8"}, {"pull", "delta-int4"}}},
};

static const struct preset *find(const char *text) {
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, text) == 0) return &presets[i];
    }
    return NULL;
}

static bool is_given(const struct options *options, const bool *given, int index) {
    return given != NULL ? given[index] : options->origins[index] >= ORIGIN_FILE;
}

/* The preset's options where nobody gave them; what came of it in what. */
static bool take(struct options *options, const struct preset *preset, const bool *given,
                 char *what, size_t what_bytes) {
    const struct job *job = options->config;
    bool expanded = false;
    int wrote = snprintf(what, what_bytes, "--push %s stands for --push %s", job->push,
                         codec_preset(job->push));
    size_t used = wrote > 0 ? (size_t)wrote : 0;
    for (size_t i = 0; i < MORE_MAX && preset->more[i].option != NULL; i++) {
        char why[256];
        int index = options_find(options, preset->more[i].option);
        ASSERT(index >= 0);
        if (is_given(options, given, index)) continue;
        ASSERT(options_set(options, index, preset->more[i].value, ORIGIN_JOB, why, sizeof why) ==
               STATUS_OK);
        wrote = used < what_bytes ? snprintf(what + used, what_bytes - used, " --%s %s",
                                             preset->more[i].option, preset->more[i].value)
                                  : 0;
        used += wrote > 0 ? (size_t)wrote : 0;
        expanded = true;
    }
    return expanded;
}

bool job_expand_preset(struct options *options, const bool *given, char *what, size_t what_bytes) {
    struct job *job = options->config;
    const struct preset *preset = find(job->push);
    if (preset == NULL || is_given(options, given, options_find(options, "mode"))) return false;
    const struct options options_before = *options;
    const struct job job_before = *job;
    char why[256];
    if (take(options, preset, given, what, what_bytes) &&
        job_check(job, why, sizeof why) == STATUS_OK) {
        return true;
    }
    *options = options_before; /* what users gave counts, and nobody gave these */
    *job = job_before;
    return false;
}
