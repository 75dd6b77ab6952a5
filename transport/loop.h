/* loop.h - the simulator's network: data and control channels inside one process, in virtual time.
 *
 * The same server and worker code runs over it as over UCX and TCP, on one thread, so that a run is
 * a function of its seed. Each data frame may be delayed, overtaken, repeated or dropped, with the
 * odds of struct loop_faults; control packets are delayed but, like TCP's, stay whole and in order.
 * A send is over (CHANNEL_SENT) after a delay of its own, also when the frame was dropped: like
 * UCX's eager sends, its status says that it left, not that it came.
 * loop_cut() severs a node: nothing more leaves or reaches it, and its control peers see the end
 * of their connections and its data peers a CHANNEL_PEER_LOST (or, in a partition, nothing).
 * Closing a channel or a control object is seen by its peers in the same way.
 * Messages are allocated as they are sent: do not run it under memory_forbid().
 */
#ifndef RUBATO_TRANSPORT_LOOP_H
#define RUBATO_TRANSPORT_LOOP_H

#include "transport/channel.h"
#include "transport/control.h"

#include <stdbool.h>

struct loop; /* the network */

struct loop_faults {
    int64_t delay_min_ns, delay_max_ns; /* of each message, uniform; overtaking follows from it */
    double duplicate;                   /* odds that a data frame comes twice */
    double drop;                        /* odds that it does not come */
    bool reliable;                      /* channels do not say that they may lose frames */
};

struct loop_counts {
    uint64_t frames, duplicated, dropped, overtaken, packets;
};

/* MEMORY. */
enum status loop_open(struct loop **loop, uint64_t seed,
                      const struct loop_faults *faults) WARN_UNUSED;

/* All channels and controls of it must be closed before. */
void loop_close(struct loop *loop);

/* A data channel or a control object on `node` (0..1023, the caller's numbering; what is cut
 * together has one node). Listening hosts and ports are one space for the whole network. */
enum status loop_channel(struct loop *loop, uint32_t node, const struct channel_config *config,
                         struct channel **channel) WARN_UNUSED;
enum status loop_control(struct loop *loop, uint32_t node, struct control **control) WARN_UNUSED;

/* Virtual time. The next moment at which something is delivered, INT64_MAX when nothing is under
 * way. */
int64_t loop_now_ns(const struct loop *loop);
int64_t loop_next_ns(const struct loop *loop);

/* Moves the clock to now_ns (never back) and delivers what is due. */
void loop_advance(struct loop *loop, int64_t now_ns);

/* From now on the node is dead (silent false: its peers' connections close) or partitioned (true);
 * there is no way back. */
void loop_cut(struct loop *loop, uint32_t node, bool silent);

/* Data connections of the node break, both ways, as CHANNEL_PEER_LOST tells, and none can be made
 * before until_ns (INT64_MAX: ever); control goes on. What was under way comes or not, by chance,
 * whether its sender was told that it left or not. */
void loop_cut_data(struct loop *loop, uint32_t node, int64_t until_ns);

void loop_count(const struct loop *loop, struct loop_counts *counts);

#endif
