/* compare_grid.h - the arms of a comparison: lists of settings, and every combination of them.
 *
 * An arm is one value for each axis: push, pull, mode, link; one of --arms has a name and options
 * of its own besides (compare_arms.h). What the values mean is not known here: an option's own
 * check (proto/job.c) says whether a text is a legal value, and that is also how lists are taken
 * apart, since a setting may hold commas itself ("topk:0.01,ef+zstd"):
 *   - ; always separates
 *   - between two ; a text that is legal as a whole is one value
 *   - else it is cut at commas, and a piece that is not legal by itself ("sr", "ef+zstd") goes on
 *     with the value before it
 * Invariant: each value of a list is legal, and is there once.
 */
#ifndef RUBATO_TOOLS_COMPARE_GRID_H
#define RUBATO_TOOLS_COMPARE_GRID_H

#include "base/options.h"
#include "base/status.h"

#include <stddef.h>

#define COMPARE_LIST_MAX ((size_t)64)
#define COMPARE_ARMS_MAX ((size_t)1024)

enum compare_axis { COMPARE_PUSH, COMPARE_PULL, COMPARE_MODE, COMPARE_LINK, COMPARE_AXES };

/* Their options' names, by axis. */
extern const char *const compare_axis_names[COMPARE_AXES];

struct compare_list {
    size_t count;
    char values[COMPARE_LIST_MAX][OPTION_TEXT_MAX];
};

struct compare_arm {
    char axis[COMPARE_AXES][OPTION_TEXT_MAX];
    char label[COMPARE_AXES * OPTION_TEXT_MAX]; /* what tells it from the others */
    char options[1024];                         /* of its own, as flags; "": it is the lists' */
    char name[96];                              /* of its folder: letters, digits and . _ - = + */
    size_t group; /* arms of the lists that differ in their link only have the same one */
    size_t link;  /* place of its link among the grid's */
};

/* Adds the values of `text`. `check` is their option's, NULL: all is legal. INVALID, logged with
 * the option's name: a value that is not legal, or too many of them. */
enum status compare_list_add(struct compare_list *list, const char *name, option_check_fn *check,
                             const char *text) WARN_UNUSED;

/* All combinations of lists [COMPARE_AXES] -> arms in new memory (free() it), links innermost, then
 * pushes, pulls, modes. INVALID, logged: more than COMPARE_ARMS_MAX. */
enum status compare_grid_arms(const struct compare_list *lists, struct compare_arm **arms,
                              size_t *count) WARN_UNUSED;

/* Names the folder of an arm by its label: letters, digits and . _ - = +, and a check-sum where the
 * label has others. */
void compare_grid_name(struct compare_arm *arm);

/* Fills in the arms' groups and, of those of the lists, labels from their axes. */
void compare_grid_label(struct compare_arm *arms, size_t count);

#endif
