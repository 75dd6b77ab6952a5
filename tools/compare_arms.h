/* compare_arms.h - arms that differ in any option, from a file: --arms.
 *
 * A line is an arm, `NAME: --option value ...`, with the flags of `rubato launch` in any of their
 * forms; '...' and "..." hold blanks together. Lines that are empty or begin with # say nothing.
 * What a line does not give is as in the arms of the lists: push, pull, mode and link the first of
 * their list, the rest the same for all.
 * A line's flags pass the same parser as a command line's, and its whole job must be one that
 * launch takes (job_check): what is wrong is told before anything runs.
 * Set-up code; one thread.
 */
#ifndef RUBATO_TOOLS_COMPARE_ARMS_H
#define RUBATO_TOOLS_COMPARE_ARMS_H

#include "base/options.h"
#include "base/status.h"
#include "proto/job.h"
#include "tools/compare_grid.h"

#include <stddef.h>

/* The options of one arm: those of all, and over them its own. */
struct compare_setup {
    struct job job;
    struct options options; /* of `job` by job_table */
};

/* Makes `path`'s arms and their setups, in new memory (free() both). `common` are the options of
 * all arms, whose table begins with job_table and whose config with a struct job. INVALID, logged
 * with the line: what cannot be read or run, an option that is the whole comparison's, a name that
 * is there twice, no arm at all. */
enum status compare_arms_read(const char *path, const struct options *common,
                              const struct compare_list *lists, struct compare_arm **arms,
                              struct compare_setup **setups, size_t *count) WARN_UNUSED;

/* Is the option the comparison's own, which no arm may have for itself? */
bool compare_arms_owned(const char *name);

#endif
