#include "transport/door.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>

#define STRANGER_NS (2 * CLOCK_MS) /* 500 a second */
#define CREDIT_MAX  (256 * STRANGER_NS)
#define CREDIT_OPEN (16 * STRANGER_NS) /* waking up for one alone is not worth it */
#define WARN_NS     (5 * CLOCK_S)
#define RECENT_NS   (1 * CLOCK_S)
#define REST_NS     (10 * CLOCK_MS)

void door_init(struct door *door, const char *name, int64_t now_ns) {
    *door = (struct door){.name = name,
                          .credit_ns = CREDIT_MAX,
                          .seen_ns = now_ns,
                          .warn_ns = INT64_MIN,
                          .refused_ns = INT64_MIN / 2};
}

bool door_take(struct door *door, int64_t now_ns) {
    door->credit_ns += now_ns - door->seen_ns;
    if (door->credit_ns > CREDIT_MAX) door->credit_ns = CREDIT_MAX;
    door->seen_ns = now_ns;
    if (door->credit_ns < STRANGER_NS) return false;
    door->credit_ns -= STRANGER_NS;
    return true;
}

void door_give_back(struct door *door) {
    door->credit_ns += STRANGER_NS;
}

int64_t door_next_ns(const struct door *door, int64_t now_ns) {
    int64_t missing_ns = CREDIT_OPEN - door->credit_ns;
    return now_ns + (missing_ns > 0 ? missing_ns : 0);
}

int64_t door_rest_ns(const struct door *door, int64_t now_ns) {
    return now_ns - RECENT_NS < door->refused_ns ? now_ns + REST_NS : now_ns;
}

void door_refuse(struct door *door, int64_t now_ns, const char *peer, const char *why) {
    door->refused++;
    door->refused_ns = now_ns;
    if (now_ns < door->warn_ns) return;
    door->warn_ns = now_ns + WARN_NS;
    log_warn("%s: refused or dropped %" PRIu64 " connections so far, the last from %s: %s",
             door->name, door->refused, peer, why);
}
