#include "proto/codec_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Defaults where a codec's number was not given. */
#define DENSITY_DEFAULT 0.01F
#define RANK_DEFAULT    4

#define RANDK_DENSITY_MIN 1e-6F

/* Takes one argument; false if it is none of the codec's. */
typedef bool argument_fn(struct codec_spec *spec, const char *word);

static bool take_fp8(struct codec_spec *spec, const char *word) {
    spec->e5m2 = strcmp(word, "e5m2") == 0;
    return spec->e5m2 || strcmp(word, "e4m3") == 0;
}

static bool take_int4(struct codec_spec *spec, const char *word) {
    bool sr = strcmp(word, "sr") == 0;
    bool had = strcmp(word, "had") == 0;
    spec->sr |= sr;
    spec->had |= had;
    return sr || had;
}

static bool take_density(struct codec_spec *spec, const char *word, float least) {
    char *end;
    float density = strtof(word, &end);
    if (*word == '\0' || *end != '\0' || !(density > 0.0F) || density < least || density > 1.0F)
        return false;
    spec->density = density;
    return true;
}

static bool take_topk(struct codec_spec *spec, const char *word) {
    if (strcmp(word, "global") != 0) return take_density(spec, word, 0.0F);
    spec->codec = CODEC_TOPK_GLOBAL;
    return true;
}

static bool take_randk(struct codec_spec *spec, const char *word) {
    return take_density(spec, word, RANDK_DENSITY_MIN);
}

static bool take_rank(struct codec_spec *spec, const char *word) {
    char *end;
    if (strcmp(word, "shared") == 0) {
        spec->codec = CODEC_POWERSGD_SHARED;
        return true;
    }
    long rank = strtol(word, &end, 10);
    spec->rank = (uint32_t)rank;
    return *word != '\0' && *end == '\0' && rank >= 1 && rank <= CODEC_RANK_MAX;
}

static const struct codec_name {
    const char *name;
    enum codec_id codec;
    bool coarse;       /* see codec_is_coarse() */
    argument_fn *take; /* NULL: it has no arguments */
} names[] = {
    {"none", CODEC_F32, false, NULL},         {"bf16", CODEC_BF16, false, NULL},
    {"fp16", CODEC_FP16, false, NULL},        {"int8", CODEC_INT8, false, NULL},
    {"fp8", CODEC_FP8, false, take_fp8},      {"int4", CODEC_INT4, true, take_int4},
    {"onebit", CODEC_ONEBIT, true, NULL},     {"topk", CODEC_TOPK, true, take_topk},
    {"randk", CODEC_RANDK, true, take_randk}, {"powersgd", CODEC_POWERSGD, true, take_rank},
    {"qsgd", CODEC_QSGD, true, NULL},         {"terngrad", CODEC_TERNGRAD, true, NULL},
    {"natural", CODEC_NATURAL, true, NULL},   {"signsgd", CODEC_SIGNSGD, true, NULL},
};

#define NAME_COUNT (sizeof names / sizeof names[0])

static const struct {
    const char *name, *text;
} presets[] = {
    {"fast", "bf16"},
    {"balanced", "int8"},
    {"thin", "int4:sr,had"},
    {"wan", "int4:sr,had"},
};

static const char *const residuals[] = {"f32", "bf16", "int8"};

const char *codec_preset(const char *text) {
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(text, presets[i].name) == 0) return presets[i].text;
    }
    return NULL;
}

bool codec_residual_find(const char *name, enum codec_residual *residual) {
    for (int i = 0; i <= RESIDUAL_INT8; i++) {
        if (strcmp(name, residuals[i]) != 0) continue;
        *residual = (enum codec_residual)i;
        return true;
    }
    return false;
}

/* The row of names; topk and powersgd have one for both of their forms. */
static const struct codec_name *name_of(enum codec_id codec) {
    if (codec == CODEC_TOPK_GLOBAL) codec = CODEC_TOPK;
    if (codec == CODEC_POWERSGD_SHARED) codec = CODEC_POWERSGD;
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (names[i].codec == codec) return &names[i];
    }
    return NULL;
}

bool codec_is_coarse(const struct codec_spec *spec) {
    const struct codec_name *name = name_of(spec->codec);
    return name != NULL && name->coarse;
}

static void list_names(char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < NAME_COUNT && used < bytes; i++) {
        int wrote = snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", names[i].name);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static const struct codec_name *find_name(const char *text, char *why, size_t why_bytes) {
    char list[160];
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (strcmp(names[i].name, text) == 0) return &names[i];
    }
    list_names(list, sizeof list);
    (void)snprintf(why, why_bytes,
                   "%s, with arguments as in int4:sr,had or topk:0.01,ef+zstd; or fast, balanced, "
                   "thin, wan",
                   list);
    return NULL;
}

static bool take_suffix(struct codec_spec *spec, const char *word) {
    bool vanilla = strcmp(word, "ef") == 0;
    if (!vanilla && strcmp(word, "ef=loco") != 0) return false;
    spec->feedback = vanilla ? FEEDBACK_VANILLA : FEEDBACK_LOCO;
    return true;
}

/* The words between commas; the first may be told from the name by a colon. */
static bool take_words(char *words, const struct codec_name *name, struct codec_spec *spec,
                       char *why, size_t why_bytes) {
    while (words != NULL) {
        char *next = strchr(words, ',');
        if (next != NULL) *next++ = '\0';
        if (!take_suffix(spec, words) && (name->take == NULL || !name->take(spec, words))) {
            (void)snprintf(why, why_bytes, "%s's own arguments, ef and ef=loco; not \"%s\"",
                           name->name, words);
            return false;
        }
        words = next;
    }
    return true;
}

bool codec_parse(const char *text, struct codec_spec *spec, char *why, size_t why_bytes) {
    char copy[CODEC_TEXT_MAX];
    struct codec_spec parsed = {.density = DENSITY_DEFAULT, .rank = RANK_DEFAULT};
    const char *preset = codec_preset(text);
    if (preset != NULL) text = preset;
    size_t length = strlen(text);
    if (length >= sizeof copy) {
        (void)snprintf(why, why_bytes, "at most %zu characters", sizeof copy - 1);
        return false;
    }
    memcpy(copy, text, length + 1);
    char *pack = strchr(copy, '+');
    if (pack != NULL) {
        if (strcmp(pack, "+zstd") != 0) {
            (void)snprintf(why, why_bytes, "+zstd, and no other suffix such as \"%s\"", pack);
            return false;
        }
        *pack = '\0';
        parsed.zstd = true;
    }
    char *words = strpbrk(copy, ":,");
    if (words != NULL) *words++ = '\0';
    const struct codec_name *name = find_name(copy, why, why_bytes);
    if (name == NULL) return false;
    parsed.codec = name->codec;
    if (!take_words(words, name, &parsed, why, why_bytes)) return false;
    if (parsed.zstd && parsed.codec == CODEC_TOPK) parsed.codec = CODEC_TOPK_GLOBAL;
    *spec = parsed;
    return true;
}

static size_t print_arguments(const struct codec_spec *spec, char *text, size_t bytes) {
    int wrote = 0;
    switch (spec->codec) {
    case CODEC_INT4:
        if (spec->sr || spec->had)
            wrote = snprintf(text, bytes, ":%s%s%s", spec->sr ? "sr" : "",
                             spec->sr && spec->had ? "," : "", spec->had ? "had" : "");
        break;
    case CODEC_FP8:
        wrote = snprintf(text, bytes, ":%s", spec->e5m2 ? "e5m2" : "e4m3");
        break;
    case CODEC_TOPK:
    case CODEC_TOPK_GLOBAL:
    case CODEC_RANDK:
        wrote = snprintf(text, bytes, ":%.9g%s", (double)spec->density,
                         spec->codec == CODEC_TOPK_GLOBAL ? ",global" : "");
        break;
    case CODEC_POWERSGD:
    case CODEC_POWERSGD_SHARED:
        wrote = snprintf(text, bytes, ":%u%s", spec->rank,
                         spec->codec == CODEC_POWERSGD_SHARED ? ",shared" : "");
        break;
    default:
        break;
    }
    return wrote > 0 ? (size_t)wrote : 0;
}

void codec_print(const struct codec_spec *spec, char text[CODEC_TEXT_MAX]) {
    static const char *const feedbacks[] = {"", ",ef", ",ef=loco"};
    const struct codec_name *name = name_of(spec->codec);
    int wrote = snprintf(text, CODEC_TEXT_MAX, "%s", name != NULL ? name->name : "");
    size_t used = wrote > 0 ? (size_t)wrote : 0;
    used += print_arguments(spec, text + used, CODEC_TEXT_MAX - used);
    (void)snprintf(text + used, CODEC_TEXT_MAX - used, "%s%s", feedbacks[spec->feedback],
                   spec->zstd ? "+zstd" : "");
}
