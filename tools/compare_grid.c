#include "tools/compare_grid.h"

#include "base/checksum.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char *const compare_axis_names[COMPARE_AXES] = {"push", "pull", "mode", "link"};

static bool legal(option_check_fn *check, const char *text) {
    char why[512];
    return text[0] != '\0' && (check == NULL || check(text, why, sizeof why));
}

static enum status add_value(struct compare_list *list, const char *name, option_check_fn *check,
                             const char *value) {
    char why[512] = "a text";
    if (value[0] == '\0' || (check != NULL && !check(value, why, sizeof why))) {
        log_error("--%s '%s': allowed is %s", name, value, why);
        return STATUS_INVALID;
    }
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->values[i], value) == 0) return STATUS_OK;
    }
    if (list->count == COMPARE_LIST_MAX) {
        log_error("--%s: more than %zu values", name, COMPARE_LIST_MAX);
        return STATUS_INVALID;
    }
    (void)snprintf(list->values[list->count++], OPTION_TEXT_MAX, "%s", value);
    return STATUS_OK;
}

/* The next piece up to one of `marks` -> piece. False at the end; too long a piece is cut, and is
 * no legal value then. */
static bool next_piece(const char **text, const char *marks, char *piece, size_t bytes) {
    if (*text == NULL) return false;
    size_t length = strcspn(*text, marks);
    (void)snprintf(piece, bytes, "%.*s", (int)length, *text);
    *text = (*text)[length] != '\0' ? *text + length + 1 : NULL;
    return true;
}

static enum status add_commas(struct compare_list *list, const char *name, option_check_fn *check,
                              const char *text) {
    char value[OPTION_TEXT_MAX] = "";
    char piece[OPTION_TEXT_MAX];
    bool first = true;
    while (next_piece(&text, ",", piece, sizeof piece)) {
        size_t used = strlen(value);
        if (!first && !legal(check, piece)) {
            size_t room = sizeof value - used;
            int bytes = snprintf(value + used, room, ",%s", piece);
            if (bytes < 0 || (size_t)bytes >= room) {
                log_error("--%s '%s...': too long", name, value);
                return STATUS_INVALID;
            }
            continue;
        }
        if (!first) TRY(add_value(list, name, check, value));
        (void)snprintf(value, sizeof value, "%s", piece);
        first = false;
    }
    return add_value(list, name, check, value);
}

enum status compare_list_add(struct compare_list *list, const char *name, option_check_fn *check,
                             const char *text) {
    char part[16 * OPTION_TEXT_MAX];
    if (strlen(text) >= sizeof part) {
        log_error("--%s: a list longer than %zu bytes", name, sizeof part - 1);
        return STATUS_INVALID;
    }
    while (next_piece(&text, ";", part, sizeof part)) {
        if (part[0] == '\0' && text == NULL && list->count > 0) break; // "a;" is a list of one
        bool whole = check != NULL && strlen(part) < OPTION_TEXT_MAX && legal(check, part);
        if (whole) {
            TRY(add_value(list, name, check, part));
        } else {
            TRY(add_commas(list, name, check, part));
        }
    }
    return STATUS_OK;
}

/* The text as a folder's name, told apart by a checksum where a character had to be replaced. */
static void name_folder(struct compare_arm *arm, const char *text) {
    char whole[COMPARE_AXES * OPTION_TEXT_MAX];
    char suffix[16] = "";
    (void)snprintf(whole, sizeof whole, "%s", text);
    size_t length = strlen(whole);
    uint64_t digest = checksum_xxh3(whole, length);
    bool changed = length >= sizeof arm->name;
    for (size_t i = 0; i < length; i++) {
        static const char kept[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789._-=+";
        if (strchr(kept, whole[i]) == NULL) {
            whole[i] = '-';
            changed = true;
        }
    }
    if (changed) (void)snprintf(suffix, sizeof suffix, "_%08x", (unsigned)(digest >> 32));
    (void)snprintf(arm->name, sizeof arm->name, "%.*s%s", (int)(sizeof arm->name - 16), whole,
                   suffix);
}

static void name_by_axes(struct compare_arm *arm) {
    char whole[COMPARE_AXES * OPTION_TEXT_MAX];
    (void)snprintf(whole, sizeof whole, "%s_%s_%s_%s", arm->axis[COMPARE_PUSH],
                   arm->axis[COMPARE_PULL], arm->axis[COMPARE_MODE], arm->axis[COMPARE_LINK]);
    name_folder(arm, whole);
}

void compare_grid_name(struct compare_arm *arm) {
    name_folder(arm, arm->label);
}

enum status compare_grid_arms(const struct compare_list *lists, struct compare_arm **arms,
                              size_t *count) {
    size_t total = 1;
    for (size_t i = 0; i < COMPARE_AXES; i++) {
        total *= lists[i].count; // at most 64^4
    }
    if (total > COMPARE_ARMS_MAX) {
        log_error("the lists make %zu arms, more than %zu", total, COMPARE_ARMS_MAX);
        return STATUS_INVALID;
    }
    static const enum compare_axis order[COMPARE_AXES] = {COMPARE_LINK, COMPARE_PUSH, COMPARE_PULL,
                                                          COMPARE_MODE};
    struct compare_arm *made = memory_zeroed(total, sizeof *made);
    for (size_t i = 0; i < total; i++) {
        size_t rest = i;
        for (size_t j = 0; j < COMPARE_AXES; j++) {
            const struct compare_list *list = &lists[order[j]];
            (void)snprintf(made[i].axis[order[j]], OPTION_TEXT_MAX, "%s",
                           list->values[rest % list->count]);
            rest /= list->count;
        }
        name_by_axes(&made[i]);
    }
    compare_grid_label(made, total);
    *arms = made;
    *count = total;
    return STATUS_OK;
}

/* Does the axis tell arms of the lists apart? */
static bool varies(const struct compare_arm *arms, size_t count, size_t axis) {
    for (size_t i = 1; i < count; i++) {
        if (arms[i].options[0] == '\0' && strcmp(arms[0].axis[axis], arms[i].axis[axis]) != 0) {
            return true;
        }
    }
    return false;
}

static bool same_group(const struct compare_arm *a, const struct compare_arm *b) {
    if (a->options[0] != '\0' || b->options[0] != '\0') return false;
    for (size_t axis = 0; axis < COMPARE_LINK; axis++) {
        if (strcmp(a->axis[axis], b->axis[axis]) != 0) return false;
    }
    return true;
}

/* Numbers arms by the first one that is alike. */
static void number_arm(struct compare_arm *arms, size_t index) {
    size_t groups = 0, links = 0;
    bool group_found = false, link_found = false;
    struct compare_arm *arm = &arms[index];
    for (size_t i = 0; i < index; i++) {
        groups = arms[i].group >= groups ? arms[i].group + 1 : groups;
        links = arms[i].link >= links ? arms[i].link + 1 : links;
        if (same_group(&arms[i], arm)) {
            arm->group = arms[i].group;
            group_found = true;
        }
        if (strcmp(arms[i].axis[COMPARE_LINK], arm->axis[COMPARE_LINK]) == 0) {
            arm->link = arms[i].link;
            link_found = true;
        }
    }
    if (!group_found) arm->group = groups;
    if (!link_found) arm->link = links;
}

void compare_grid_label(struct compare_arm *arms, size_t count) {
    bool shown[COMPARE_AXES];
    bool any = false;
    for (size_t axis = 0; axis < COMPARE_AXES; axis++) {
        shown[axis] = varies(arms, count, axis);
        any = any || shown[axis];
    }
    if (!any) shown[COMPARE_PUSH] = true;
    for (size_t i = 0; i < count; i++) {
        struct compare_arm *arm = &arms[i];
        size_t used = 0;
        for (size_t axis = 0; axis < COMPARE_AXES && arm->options[0] == '\0'; axis++) {
            if (!shown[axis]) continue;
            // "none" and "bf16" alone do not say of what
            bool named = axis == COMPARE_PULL || axis == COMPARE_LINK;
            used += (size_t)snprintf(arm->label + used, sizeof arm->label - used, "%s%s%s%s",
                                     used > 0 ? " " : "", named ? compare_axis_names[axis] : "",
                                     named ? "=" : "", arm->axis[axis]);
        }
        number_arm(arms, i);
    }
}
