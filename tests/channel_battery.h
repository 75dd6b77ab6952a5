/* channel_battery.h - what every data channel between processes must do, as tests.
 *
 * Two channels of this process, polled in turn: every size class, a thousand mixed frames both ways
 * through few slots, of the channel's own memory and of other, with contents that are a function of
 * their number and so checked without a copy of what was sent; the limits (too long a payload, too
 * many sends, a receiver that releases nothing); sleeping on wait_fd; damaged addresses, bit by
 * bit. A process of its own (this program again) is the peer that is killed, stopped or left.
 */
#ifndef RUBATO_TESTS_CHANNEL_BATTERY_H
#define RUBATO_TESTS_CHANNEL_BATTERY_H

#include "base/clock.h"
#include "transport/channel.h"

#include <stdbool.h>
#include <sys/types.h>

/* Against a hang; nothing is asserted on time. */
#define CHANNEL_BATTERY_DEADLINE_NS (120 * CLOCK_S)

struct channel_battery {
    enum status (*open)(struct channel **channel, const struct channel_config *config);
    const char *program; /* this program's path */
    uint64_t sent_least; /* frames that leave before a receiver without slots holds them back */

    /* Optional. While it is on, who cannot be reached is lost soon, and not after the lease that
     * the channel was opened with. Only while all peers are dead: a busy machine must not lose
     * others. */
    void (*hasten)(struct channel *channel, bool on);
};

/* 4 peers, 16 slots of 4 MiB, 64 sends. */
extern const struct channel_config channel_battery_config;

/* First of all, also in the other roles. */
void channel_battery_begin(const struct channel_battery *chosen);

/* Plays the peer if the arguments say so, and returns its exit code; else -1. */
int channel_battery_role(int argc, char **argv);

void channel_battery_run(void);

/* ---- for tests of one kind of channel alone ---- */

struct channel *channel_battery_open(const struct channel_config *config);
void channel_battery_connect(struct channel *from, uint32_t number, struct channel *to);

/* Frame `id` of `bytes`: a header whose first words are id and length, a payload that follows. */
void channel_battery_fill(uint64_t id, uint8_t header[FRAME_BYTES], uint8_t *payload, size_t bytes);

/* Checks a received frame against its own header, returns its id. */
uint64_t channel_battery_check(const struct channel_event *event);

/* Polls until `channel` has `kind`; other kinds are dropped, slots released; so are those of
 * `other`, which may be NULL. */
struct channel_event channel_battery_wait(struct channel *channel, struct channel *other,
                                          enum channel_event_kind kind);

/* This program again in another role (fork and exec: UCX does not survive a fork alone). */
pid_t channel_battery_spawn(const char *role, const char *in, const char *out);

/* Close while frames are being fetched, from a peer that runs or has stopped, that we are
 * connected to or not, and with sends to it in flight. */
void channel_battery_close_while_fetching(bool stopped, bool both_ways);

#endif
