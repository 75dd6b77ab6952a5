#include "base/idle.h"

#include <string.h>

enum status idle_init(struct idle *idle, const char *mode, int64_t now_ns) {
    static const char *const names[] = {
        [IDLE_SLEEP] = "sleep", [IDLE_ADAPTIVE] = "adaptive", [IDLE_BUSY] = "busy"};
    for (int i = IDLE_SLEEP; i <= IDLE_BUSY; i++) {
        if (strcmp(mode, names[i]) != 0) continue;
        *idle = (struct idle){.mode = (enum idle_mode)i, .sleep_ns = now_ns + IDLE_SPIN_NS};
        return STATUS_OK;
    }
    return STATUS_INVALID;
}

bool idle_looks_again(struct idle *idle, bool worked, int64_t now_ns) {
    if (worked) idle->sleep_ns = now_ns + IDLE_SPIN_NS;
    return worked || idle->mode == IDLE_BUSY ||
           (idle->mode == IDLE_ADAPTIVE && now_ns < idle->sleep_ns);
}
