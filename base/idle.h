/* idle.h - what a thread does that has found no work: look again, or sleep.
 *
 * A sleep costs two switches of the thread and the time until it is woken; looking again costs a
 * core. sleep: sleeps at once. adaptive: looks again until IDLE_SPIN_NS after the last work. busy:
 * never sleeps, for machines with a core for each thread.
 */
#ifndef RUBATO_BASE_IDLE_H
#define RUBATO_BASE_IDLE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define IDLE_SPIN_NS INT64_C(50000)

enum idle_mode { IDLE_SLEEP, IDLE_ADAPTIVE, IDLE_BUSY };

struct idle {
    enum idle_mode mode;
    int64_t sleep_ns; /* when to sleep, unless there is work before */
};

/* "sleep", "adaptive" or "busy" -> a thread that has just worked. INVALID. Pure. */
enum status idle_init(struct idle *idle, const char *mode, int64_t now_ns) WARN_UNUSED;

/* After each look: shall the thread look again rather than sleep? `worked`: something was found. */
bool idle_looks_again(struct idle *idle, bool worked, int64_t now_ns);

#endif
