/* signals.h - SIGINT and SIGTERM as something to read, not as an interruption.
 *
 * The signals are blocked in all threads and come through a signalfd that the program's event loop
 * polls. After the first one is read they have their usual effect again, so that a second Ctrl-C
 * ends a process that does not end by itself.
 */
#ifndef RUBATO_BASE_SIGNALS_H
#define RUBATO_BASE_SIGNALS_H

#include "base/status.h"

#define SIGNALS_EXIT_BASE 128 /* exit code of a process that signal n ended: 128 + n */

/* Before any thread starts. SIGPIPE is ignored from now on. IO, logged. */
enum status signals_open(int *fd) WARN_UNUSED;

/* The signal that has come, 0 for none. fd may be -1. The thread that calls gets the usual effect
 * of a second one. */
int signals_read(int fd);

/* "SIGINT", "SIGTERM". */
const char *signals_name(int number);

#endif
