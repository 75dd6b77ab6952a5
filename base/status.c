#include "base/status.h"

const char *status_text(enum status status) {
    static const char *const texts[] = {
#define STATUS_TEXT(name, text) [STATUS_##name] = (text),
        STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    };
    int count = (int)(sizeof texts / sizeof texts[0]);
    if ((int)status < 0 || (int)status >= count) return "unknown status";
    return texts[status];
}

enum exit_code status_exit_code(enum status status) {
    switch (status) {
    case STATUS_OK:
        return EXIT_CODE_OK;
    case STATUS_INVALID:
    case STATUS_UNSUPPORTED:
        return EXIT_CODE_USAGE;
    case STATUS_CORRUPT:
        return EXIT_CODE_DATA;
    case STATUS_STALE:
        return EXIT_CODE_PROTOCOL;
    case STATUS_TIMEOUT:
    case STATUS_PEER_LOST:
        return EXIT_CODE_UNREACHABLE;
    case STATUS_MISMATCH:
        return EXIT_CODE_MISMATCH;
    case STATUS_DENIED:
        return EXIT_CODE_DENIED;
    case STATUS_IO:
        return EXIT_CODE_IO;
    case STATUS_MEMORY:
        return EXIT_CODE_MEMORY;
    case STATUS_DEVICE:
        return EXIT_CODE_DEVICE;
    case STATUS_AGAIN: /* nobody should end a process with it */
        return EXIT_CODE_INTERNAL;
    }
    return EXIT_CODE_INTERNAL;
}
