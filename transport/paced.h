/* paced.h - a data channel at the pace of a slower link: wraps any channel and delays its frames.
 *
 * A process has one link with two token buckets, outgoing and incoming, that all its channels (one
 * a shard thread) and all their peers share. A frame of n bytes, its header among them, takes
 * n / rate of its bucket, in the order in which frames are sent or come in; a bucket saves at most
 * PACED_BURST_BYTES while it rests.
 *   out: a frame goes to the wrapped channel when its last byte would have left
 *   in:  a frame is shown to the owner when its last byte would have come. Its bytes were under way
 *        while they left the sender, so a frame that finds the bucket at rest waits no second time
 * Nothing here sleeps: what is not due waits in a queue of bounded size, and wait_fd() becomes
 * readable when it is due. A send that waits counts as in flight (channel_config.sends_max); a
 * received frame that waits keeps its slot, so that a slow owner's senders stop as before.
 * Invariant: frames of a channel keep their order, and over any time t a bucket lets through at
 * most PACED_BURST_BYTES + rate * t bytes, and one frame.
 * The link may be used by all threads; a channel belongs to one, as the wrapped one does.
 */
#ifndef RUBATO_TRANSPORT_PACED_H
#define RUBATO_TRANSPORT_PACED_H

#include "base/status.h"
#include "transport/channel.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACED_BURST_BYTES ((uint64_t)64 << 10)

/* Monotonic time in nanoseconds; a test's is virtual. */
typedef int64_t paced_clock_fn(void *context);

struct paced_link {
    uint64_t bytes_a_second; /* in each direction; 0: as fast as it goes */
    _Atomic int64_t out_ns;  /* when the last frame that was let through will have passed */
    _Atomic int64_t in_ns;
    paced_clock_fn *clock; /* NULL: clock_now_ns() */
    void *context;
};

/* "none", or a rate in bits: "100mbit", "2.5gbit", "64kbit" (powers of 1000) -> bytes a second, 0
 * for none. INVALID: neither, below 1 kbit or above 10000 gbit. Pure. */
enum status paced_parse(const char *text, uint64_t *bytes_a_second) WARN_UNUSED;

/* A link at rest, by the machine's clock. INVALID as above; not logged. */
enum status paced_link_init(struct paced_link *link, const char *text) WARN_UNUSED;

/* Wraps `*channel`, which was opened with `config`, and puts the wrapper in its place; closing it
 * closes both. With a link of rate 0 nothing is changed. `link` must outlive the channel. IO,
 * logged: `*channel` is closed, and NULL. */
enum status paced_wrap(struct paced_link *link, const struct channel_config *config,
                       struct channel **channel) WARN_UNUSED;

/* When the next waiting frame is due: INT64_MAX for none. For owners without a wait_fd. `channel`
 * may be an unwrapped one. */
int64_t paced_next_ns(const struct channel *channel);

#endif
