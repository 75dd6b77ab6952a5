#include "base/device_name.h"

#include <stddef.h>
#include <string.h>

const char *device_kind_name(enum device_kind kind) {
    static const char *const names[DEVICE_KINDS] = {"cpu", "cuda"};
    return names[kind];
}

/* Digits -> number below 10000; returns what is behind them, NULL if there are none or too many. */
static const char *parse_number(const char *text, int *number) {
    const char *at = text;
    *number = 0;
    for (; *at >= '0' && *at <= '9' && at < text + 4; at++)
        *number = *number * 10 + (*at - '0');
    return at == text || (*at >= '0' && *at <= '9') ? NULL : at;
}

static bool add_device(struct device_names *names, int index) {
    if (names->count == DEVICE_NAMES_MAX) return false;
    for (int i = 0; i < names->count; i++) {
        if (names->indices[i] == index) return false;
    }
    names->indices[names->count++] = index;
    return true;
}

static bool parse_list(const char *text, struct device_names *names) {
    int index;
    for (;;) {
        text = parse_number(text, &index);
        if (text == NULL || !add_device(names, index)) return false;
        if (*text == 0) return true;
        if (*text++ != ',') return false;
    }
}

static bool parse_members(const char *text, int *members) {
    const char *end = parse_number(text, members);
    return end != NULL && *end == 0 && *members >= 1 && *members <= DEVICE_NAMES_MAX;
}

bool device_names_parse(const char *text, struct device_names *names) {
    for (int kind = 0; kind < DEVICE_KINDS; kind++) {
        const char *name = device_kind_name((enum device_kind)kind);
        size_t length = strlen(name);
        struct device_names parsed = {.kind = (enum device_kind)kind, .count = 0};
        if (strncmp(text, name, length) != 0) continue;
        bool known = false;
        if (text[length] == 0) {
            parsed.count = kind == DEVICE_CPU ? 1 : 0;
            known = true;
        } else if (text[length] == ':') {
            known = kind == DEVICE_CPU ? parse_members(text + length + 1, &parsed.count)
                                       : parse_list(text + length + 1, &parsed);
        }
        if (known) *names = parsed;
        return known;
    }
    return false;
}

bool device_name_parse(const char *text, enum device_kind *kind, int *index) {
    struct device_names names;
    if (!device_names_parse(text, &names) || names.count != 1) return false;
    *kind = names.kind;
    *index = names.indices[0];
    return true;
}
