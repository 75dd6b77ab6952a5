/* log.h - one line a message on standard error: time of day, level, text.
 *
 * Levels by volume: error and warn (something is wrong), info (a few lines a run), debug (per
 * step), trace (per frame). Lower case, no full stop, names the peer, the flag or the file.
 * Each line is one write(2), so that lines of several threads and processes do not mix; control
 * characters in it (a line end, too) are written as spaces, what is beyond 2 KiB is cut off.
 * The level is the only mutable global of the project, but for the counters of memory_guard.c.
 * Any thread may log.
 */
#ifndef RUBATO_BASE_LOG_H
#define RUBATO_BASE_LOG_H

#include "base/status.h"

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* Sets what is printed from now on. Before the threads start. */
void log_set_level(enum log_level level);

/* "error|warn|info|debug|trace" -> level. INVALID for anything else. */
enum status log_level_parse(const char *text, enum log_level *level) WARN_UNUSED;

bool log_enabled(enum log_level level);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Lower case, since they read as functions. NOLINTBEGIN(readability-identifier-naming) */
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_trace(...) log_write(LOG_TRACE, __VA_ARGS__)
/* NOLINTEND(readability-identifier-naming) */

#endif
