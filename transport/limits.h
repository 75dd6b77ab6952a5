/* limits.h - what the system lets this process have: open files and locked memory.
 *
 * Asked before a coordinator listens and before a data channel opens, so that a job ends at once
 * and says what to change, not in its middle with a connection that fails. A soft limit that is too
 * low is raised as far as its hard limit allows. What is refused is logged with how to allow it, at
 * the level that the caller gives: as an error, or a warning where it goes on with less.
 */
#ifndef RUBATO_TRANSPORT_LIMITS_H
#define RUBATO_TRANSPORT_LIMITS_H

#include "base/log.h"
#include "base/status.h"

#include <stdint.h>

/* May so many files be open at once (RLIMIT_NOFILE)? IO, logged: no. */
enum status limits_files(uint64_t files, enum log_level level) WARN_UNUSED;

/* May so much memory be locked (RLIMIT_MEMLOCK, or CAP_IPC_LOCK)? RDMA devices read and write
 * locked memory only; TCP needs none. MEMORY, logged: no. */
enum status limits_locked(uint64_t bytes, enum log_level level) WARN_UNUSED;

#endif
