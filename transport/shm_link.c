#include "transport/shm_link.h"

#include "base/assert.h"
#include "base/memory.h"

#include <string.h>
#include <unistd.h>

/* Messages read at once, so that one who rings without end does not keep us. */
enum { MESSAGES_A_READ = 16 };

/* Reads that empty a socket: the system queues less than 1024 packets. */
enum { READS_FOR_REGION = 64 };

_Static_assert(sizeof(struct shm_frame) == 120, "the words of an item but the last");

static enum status tell(int fd, enum shm_message_kind kind, uint32_t value,
                        const struct shm_memory *memory, const uint8_t *name) {
    struct shm_message message = {.magic = SHM_MAGIC, .kind = kind, .value = value};
    if (memory) message.bytes = memory->bytes;
    if (name) memcpy(message.name, name, SHM_NAME_BYTES);
    return shm_socket_send(fd, &message, memory ? memory->fd : -1);
}

/* Once a sleep of the other side's. A full socket wakes it as well. */
static void ring_bell(int fd, uint32_t sleep, uint32_t *rung) {
    if (sleep == 0 || sleep == *rung || fd < 0) return;
    *rung = sleep;
    (void)!tell(fd, SHM_BELL, 0, NULL, NULL);
}

/* Handed over: the mapping alone keeps it. */
static void forget_fd(struct shm_memory *memory) {
    close(memory->fd);
    memory->fd = -1;
}

static void close_socket(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* ---- the sender's half ---- */

enum status shm_out_open(struct shm_out *out, const uint8_t *name, const uint8_t *own,
                         uint32_t items) {
    *out = (struct shm_out){.fd = -1};
    int fd = -1;
    TRY(shm_socket_dial(name, &fd));
    enum status status =
        shm_memory_create(&out->outbox_memory, shm_box_bytes(items, SHM_ITEM_WORDS));
    if (status == STATUS_OK) {
        status = tell(fd, SHM_HELLO, items, &out->outbox_memory, own);
    }
    if (status != STATUS_OK) {
        shm_memory_free(&out->outbox_memory);
        close(fd);
        return status == STATUS_MEMORY ? status : STATUS_PEER_LOST;
    }
    forget_fd(&out->outbox_memory);
    out->outbox = (struct shm_box){
        .memory = out->outbox_memory.base, .items = items, .item_words = SHM_ITEM_WORDS};
    out->fd = fd;
    memcpy(out->name, name, SHM_NAME_BYTES);
    return STATUS_OK;
}

void shm_out_close(struct shm_out *out) {
    close_socket(&out->fd);
    shm_memory_free(&out->outbox_memory);
    shm_memory_free(&out->returned);
}

enum status shm_out_tell_region(struct shm_out *out, const struct shm_memory *region) {
    enum status status = tell(out->fd, SHM_REGION, out->regions, region, NULL);
    out->regions++;
    return status == STATUS_OK ? STATUS_OK : STATUS_PEER_LOST;
}

static enum status take_welcome(struct shm_out *out, const struct shm_message *message, int fd) {
    uint32_t items = out->outbox.items;
    if (out->returned.base || message->bytes < shm_box_bytes(items, 1)) {
        close(fd);
        return STATUS_CORRUPT;
    }
    TRY(shm_memory_map(&out->returned, fd, message->bytes));
    out->returns = (struct shm_box){.memory = out->returned.base, .items = items, .item_words = 1};
    return STATUS_OK;
}

enum status shm_out_read(struct shm_out *out) {
    for (int i = 0; i < MESSAGES_A_READ; i++) {
        struct shm_message message;
        int fd = -1;
        enum status status = shm_socket_receive(out->fd, &message, &fd);
        if (status == STATUS_AGAIN) return STATUS_OK;
        if (status != STATUS_OK) return status;
        if (fd >= 0 && message.kind == SHM_WELCOME) {
            TRY(take_welcome(out, &message, fd));
        } else if (fd >= 0 || message.kind != SHM_BELL) {
            if (fd >= 0) close(fd);
            return STATUS_CORRUPT;
        }
    }
    return STATUS_OK;
}

enum status shm_out_put(struct shm_out *out, const struct shm_frame *frame) {
    uint64_t item[SHM_ITEM_WORDS] = {0};
    if (out->flying == out->outbox.items) return STATUS_AGAIN;
    memcpy(item, frame, sizeof *frame);
    out->flying++;
    shm_box_put(&out->outbox, item);
    if (out->returned.base) {
        ring_bell(out->fd, shm_box_sleep(&out->returns), &out->rung);
    } else {
        (void)!tell(out->fd, SHM_BELL, 0, NULL, NULL); /* not known yet whether it sleeps */
    }
    return STATUS_OK;
}

enum status shm_out_take(struct shm_out *out, uint32_t *token) {
    uint64_t item;
    if (!out->returned.base) return STATUS_AGAIN;
    TRY(shm_box_take(&out->returns, &item));
    if (out->flying == 0 || item > UINT32_MAX) return STATUS_CORRUPT;
    out->flying--;
    *token = (uint32_t)item;
    return STATUS_OK;
}

/* ---- the receiver's half ---- */

void shm_in_init(struct shm_in *in, int fd) {
    *in = (struct shm_in){.fd = fd, .used = true};
}

void shm_in_close(struct shm_in *in) {
    close_socket(&in->fd);
    shm_memory_free(&in->outbox_memory);
    shm_memory_free(&in->returns_memory);
    for (uint32_t i = 0; i < SHM_REGIONS_MAX; i++) {
        shm_memory_free(&in->regions[i]);
    }
    in->used = false;
}

static enum status take_hello(struct shm_in *in, const struct shm_message *message, int fd) {
    uint32_t items = message->value;
    bool sound = !in->outbox_memory.base && items >= 1 && items <= SHM_ITEMS_MAX &&
                 (items & (items - 1)) == 0 &&
                 message->bytes >= shm_box_bytes(items, SHM_ITEM_WORDS);
    if (!sound) {
        close(fd);
        return STATUS_CORRUPT;
    }
    TRY(shm_memory_map(&in->outbox_memory, fd, message->bytes));
    TRY(shm_memory_create(&in->returns_memory, shm_box_bytes(items, 1)));
    in->outbox = (struct shm_box){
        .memory = in->outbox_memory.base, .items = items, .item_words = SHM_ITEM_WORDS};
    in->returns =
        (struct shm_box){.memory = in->returns_memory.base, .items = items, .item_words = 1};
    memcpy(in->name, message->name, SHM_NAME_BYTES);
    /* To one who has ended already it does not matter: what he sent is to be received. */
    (void)!tell(in->fd, SHM_WELCOME, 0, &in->returns_memory, NULL);
    forget_fd(&in->returns_memory);
    return STATUS_OK;
}

static enum status take_message(struct shm_in *in, const struct shm_message *message, int fd) {
    bool region = message->kind == SHM_REGION && message->value < SHM_REGIONS_MAX &&
                  !in->regions[message->value].base;
    if (message->kind == SHM_BELL && fd < 0) return STATUS_OK;
    if (fd >= 0 && message->kind == SHM_HELLO) return take_hello(in, message, fd);
    if (fd >= 0 && region) {
        return shm_memory_map(&in->regions[message->value], fd, message->bytes);
    }
    if (fd >= 0) close(fd);
    return STATUS_CORRUPT;
}

enum status shm_in_read(struct shm_in *in) {
    for (int i = 0; i < MESSAGES_A_READ; i++) {
        struct shm_message message;
        int fd = -1;
        enum status status = shm_socket_receive(in->fd, &message, &fd);
        if (status == STATUS_AGAIN) return STATUS_OK;
        if (status != STATUS_OK) return status;
        TRY(take_message(in, &message, fd));
    }
    return STATUS_OK;
}

static bool is_known(const struct shm_in *in, const struct shm_frame *frame) {
    return frame->region < SHM_REGIONS_MAX && in->regions[frame->region].base != NULL;
}

enum status shm_in_take(struct shm_in *in, struct shm_frame *frame, const uint8_t **payload) {
    uint64_t item[SHM_ITEM_WORDS];
    if (!in->outbox_memory.base) return STATUS_AGAIN;
    TRY(shm_box_take(&in->outbox, item));
    memcpy(frame, item, sizeof *frame);
    *payload = NULL;
    if (frame->bytes == 0) return STATUS_OK;
    /* The region was handed over before the frame was put, so its message is there, but maybe after
     * some bells. */
    for (int i = 0; i < READS_FOR_REGION && !is_known(in, frame) && in->fd >= 0; i++) {
        if (shm_in_read(in) != STATUS_OK) break;
    }
    if (!is_known(in, frame)) return STATUS_CORRUPT;
    const struct shm_memory *region = &in->regions[frame->region];
    if (frame->bytes > region->bytes || frame->offset > region->bytes - frame->bytes ||
        frame->offset % MEMORY_ALIGN != 0) {
        return STATUS_CORRUPT;
    }
    *payload = region->base + frame->offset;
    return STATUS_OK;
}

void shm_in_return(struct shm_in *in, uint32_t token) {
    const uint64_t item = token;
    ASSERT_OP(in->held, >, 0);
    in->held--;
    shm_box_put(&in->returns, &item);
    ring_bell(in->fd, shm_box_sleep(&in->outbox), &in->rung);
}
