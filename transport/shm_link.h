/* shm_link.h - one direction of channel_shm: frames from a sender to a receiver of the same host.
 *
 *   sender   outbox  (memory of the sender's): a ring of frames, and whether the sender sleeps
 *            regions (likewise): where the payloads lie
 *   receiver returns (memory of the receiver's): a ring of tokens, each a frame that was released,
 *            and whether the receiver sleeps
 *   between them a socket: hands over the memories, rings bells, and its end is the other's end
 * Every piece of memory has one writer, and the other side maps it for reading only, so neither can
 * damage what the other relies on; what is read is checked before it is used. At most as many
 * frames as the ring has items are not yet returned, so that neither ring can overflow.
 * offset size field of a frame's item, 128 bytes: 0 96 the frame header, 96 4 token, 100 4 number
 * of the region, 104 8 offset of the payload there, 112 8 its length, 120 8 reserved. A token's
 * item is 8 bytes.
 */
#ifndef RUBATO_TRANSPORT_SHM_LINK_H
#define RUBATO_TRANSPORT_SHM_LINK_H

#include "proto/frame.h"
#include "transport/shm_box.h"
#include "transport/shm_memory.h"
#include "transport/shm_socket.h"

#include <stdbool.h>

enum { SHM_REGIONS_MAX = 8, SHM_ITEM_WORDS = 16 };
#define SHM_ITEMS_MAX ((uint32_t)1 << 22)

struct shm_frame {
    uint64_t header[FRAME_BYTES / sizeof(uint64_t)];
    uint32_t token;
    uint32_t region;
    uint64_t offset; /* a multiple of MEMORY_ALIGN */
    uint64_t bytes;
};

/* The sender's half. */
struct shm_out {
    int fd;                                    /* the socket; -1: there is no link */
    struct shm_memory outbox_memory, returned; /* the second: the receiver's, once it is known */
    struct shm_box outbox, returns;
    uint32_t flying; /* frames that were not returned */
    uint32_t regions;
    uint32_t rung; /* the receiver's sleep that was ended by a bell */
    uint8_t name[SHM_NAME_BYTES];
};

/* The receiver's half. */
struct shm_in {
    int fd;                                          /* -1: the sender has closed */
    bool used;                                       /* until it has closed and all is released */
    bool broken;                                     /* it sent nonsense: nothing more is taken */
    struct shm_memory outbox_memory, returns_memory; /* the first: the sender's */
    struct shm_box outbox, returns;
    struct shm_memory regions[SHM_REGIONS_MAX];
    uint32_t held; /* frames taken and not yet returned */
    uint32_t rung;
    uint8_t name[SHM_NAME_BYTES]; /* where the sender listens itself */
};

/* Connects to who listens at `name`; `own` is our own name. PEER_LOST, DENIED, MEMORY. Not logged
 * but for memory. */
enum status shm_out_open(struct shm_out *out, const uint8_t *name, const uint8_t *own,
                         uint32_t items) WARN_UNUSED;
void shm_out_close(struct shm_out *out);

/* Hands over one more region. PEER_LOST. */
enum status shm_out_tell_region(struct shm_out *out, const struct shm_memory *region) WARN_UNUSED;

/* Reads the socket. PEER_LOST, CORRUPT. */
enum status shm_out_read(struct shm_out *out) WARN_UNUSED;

/* AGAIN: as many are flying as the ring has items. */
enum status shm_out_put(struct shm_out *out, const struct shm_frame *frame) WARN_UNUSED;

/* The next frame that was returned. AGAIN, CORRUPT; the token is unchecked. */
enum status shm_out_take(struct shm_out *out, uint32_t *token) WARN_UNUSED;

/* A connection that came in. */
void shm_in_init(struct shm_in *in, int fd);
void shm_in_close(struct shm_in *in);

/* Reads the socket. PEER_LOST, CORRUPT, MEMORY. */
enum status shm_in_read(struct shm_in *in) WARN_UNUSED;

/* The next frame, its payload within the memory that was handed over. AGAIN, CORRUPT. */
enum status shm_in_take(struct shm_in *in, struct shm_frame *frame,
                        const uint8_t **payload) WARN_UNUSED;

/* The frame with this token is released: tells the sender. */
void shm_in_return(struct shm_in *in, uint32_t token);

#endif
