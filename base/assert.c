#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* dprintf, not fprintf: the heap and the locks of stdio may be what is broken. */
void assert_fail(const char *file, int line, const char *text) {
    dprintf(STDERR_FILENO, "%s:%d: assertion failed: %s\n", file, line, text);
    abort();
}

void assert_fail_values(const char *file, int line, const char *text, int64_t left, int64_t right) {
    dprintf(STDERR_FILENO, "%s:%d: assertion failed: %s (%" PRId64 " against %" PRId64 ")\n", file,
            line, text, left, right);
    abort();
}
