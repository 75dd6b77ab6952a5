/* message.h - control messages to bytes and back, within fixed memory.
 *
 * protobuf-c does the work (generated control.pb-c.h); here are the limits: a packed message is at
 * most MESSAGE_MAX bytes, and unpacking takes all its memory from a scratch buffer that the caller
 * sized, so that a hostile message costs nothing and the step loop allocates nothing.
 */
#ifndef RUBATO_PROTO_MESSAGE_H
#define RUBATO_PROTO_MESSAGE_H

#include "base/status.h"
#include "proto/control.pb-c.h"

#include <stddef.h>
#include <stdint.h>

#define MESSAGE_MAX ((size_t)1 << 20)

struct message_scratch {
    uint8_t *memory;
    size_t capacity;
    size_t used;
};

/* Takes capacity bytes (MESSAGE_MAX * 8 serves every legal message). MEMORY. */
enum status message_scratch_init(struct message_scratch *scratch, size_t capacity) WARN_UNUSED;
void message_scratch_free(struct message_scratch *scratch);

/* Unpacks bytes [count]; the result lives in the scratch until the next unpack into it. CORRUPT:
 * malformed, no body, or larger than the scratch (not logged: the caller knows the peer). */
enum status message_unpack(struct message_scratch *scratch, const uint8_t *bytes, size_t count,
                           const Rubato__Message **message) WARN_UNUSED;

/* Packs into bytes [capacity]. INVALID when it does not fit. */
enum status message_pack(const Rubato__Message *message, uint8_t *bytes, size_t capacity,
                         size_t *count) WARN_UNUSED;

/* "join", "verdict", ...: the body's name, for logs. */
const char *message_name(const Rubato__Message *message);

#endif
