/* rails.h - a data channel over UCX that sends each device's payloads by a context of that device.
 *
 * UCX goes by the calling thread's current CUDA device, so one context cannot serve several, and
 * each is to send by the network card that is nearest to it (rail_choice.h). So beside the first
 * channel each device has one of its own, a rail. A payload in a device's memory leaves by its
 * rail, all others by the first channel. Whatever a rail does, it does with its device current in
 * the calling thread; which one is current after a call is not said.
 * A peer is connected by the first channel at once, by a rail when that has a first payload for it.
 * When one loses it, or a rail cannot connect, it is lost, once, and sends to it fail whatever they
 * go by; those in flight by the others end as they will. A line says by which rail it was lost, if
 * a send failed; a peer that ends well closes its connections, too. Peers know the first channel's
 * address alone, so rails receive nothing.
 * Frames by different rails overtake each other, which the protocol survives (channel.h).
 */
#ifndef RUBATO_TRANSPORT_RAILS_H
#define RUBATO_TRANSPORT_RAILS_H

#include "transport/channel.h"
#include "transport/rail_choice.h"

/* Takes over `first` and rails_of [config->device_count], rails_of[i] for config->devices[i] by
 * choice->names[i]; all are UCX's (channel_ucx.h), and are closed in any case. All have the
 * config's peers, and each of them as many sends. Rails need one slot, and are asked for memory of
 * their device 0. IO, logged. */
enum status rails_open(struct channel *first, struct channel *const *rails_of,
                       const struct channel_config *config, const struct rail_choice *choice,
                       struct channel **channel) WARN_UNUSED;

#endif
