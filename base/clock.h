/* clock.h - monotonic time. Policy code never reads it: time comes in as `now_ns`. */
#ifndef RUBATO_BASE_CLOCK_H
#define RUBATO_BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_MS INT64_C(1000000)
#define CLOCK_S  INT64_C(1000000000)

/* Nanoseconds of CLOCK_MONOTONIC. Any thread. */
int64_t clock_now_ns(void);

#endif
