#include "transport/tls_door.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>

#define STRANGER_NS (2 * CLOCK_MS) /* 500 a second */
#define CREDIT_MAX  (256 * STRANGER_NS)
#define CREDIT_OPEN (16 * STRANGER_NS) /* waking up for one alone is not worth it */
#define WARN_NS     (5 * CLOCK_S)

void tls_door_init(struct tls_door *door, int64_t now_ns) {
    *door = (struct tls_door){.credit_ns = CREDIT_MAX, .seen_ns = now_ns, .warn_ns = INT64_MIN};
}

bool tls_door_take(struct tls_door *door, int64_t now_ns) {
    door->credit_ns += now_ns - door->seen_ns;
    if (door->credit_ns > CREDIT_MAX) door->credit_ns = CREDIT_MAX;
    door->seen_ns = now_ns;
    if (door->credit_ns < STRANGER_NS) return false;
    door->credit_ns -= STRANGER_NS;
    return true;
}

void tls_door_give_back(struct tls_door *door) {
    door->credit_ns += STRANGER_NS;
}

int64_t tls_door_next_ns(const struct tls_door *door, int64_t now_ns) {
    int64_t missing_ns = CREDIT_OPEN - door->credit_ns;
    return now_ns + (missing_ns > 0 ? missing_ns : 0);
}

void tls_door_refuse(struct tls_door *door, int64_t now_ns, const char *peer, const char *why) {
    door->refused++;
    if (now_ns < door->warn_ns) return;
    door->warn_ns = now_ns + WARN_NS;
    log_warn("tls: refused or dropped %" PRIu64 " connections so far, the last from %s: %s",
             door->refused, peer, why);
}
