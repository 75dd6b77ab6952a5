#include "base/assert.h"
#include "transport/channel_ucx_parts.h"

#include <string.h>

/* The queue of messages that wait for a slot. Beyond the mark of eager ones, whose payloads take
 * memory here, or with no more room than one ucp_worker_progress() can fill (4 sockets, 360 KiB
 * each, some 130 bytes a frame), the channel does not progress. */
#define WAITING_BURST      12288
#define WAITING_EAGER_MARK 1024

void channel_ucx_drop_data(struct ucx *ucx, void *data) {
    if (data) ucp_am_data_release(ucx->worker, data);
}

ucs_status_t channel_ucx_frame(void *user, const void *header, size_t header_bytes, void *data,
                               size_t payload_bytes, const ucp_am_recv_param_t *param) {
    struct ucx *ucx = user;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    bool lasting = param->recv_attr & (UCP_AM_RECV_ATTR_FLAG_RNDV | UCP_AM_RECV_ATTR_FLAG_DATA);
    if (ucx->closing) return UCS_OK;
    if (header_bytes != FRAME_BYTES || payload_bytes > ucx->config.slot_bytes ||
        ucx->waiting_count == CHANNEL_UCX_WAITING_MAX || (payload_bytes > 0 && !lasting)) {
        ucx->stats.refused++;
        return UCS_OK;
    }
    uint32_t at = (ucx->waiting_head + ucx->waiting_count++) % CHANNEL_UCX_WAITING_MAX;
    struct ucx_waiting *waiting = &ucx->waiting[at];
    memcpy(waiting->header, header, FRAME_BYTES);
    waiting->data = lasting ? data : NULL;
    waiting->payload_bytes = payload_bytes;
    waiting->rendezvous = rendezvous;
    if (!rendezvous) ucx->waiting_eager++;
    return lasting ? UCS_INPROGRESS : UCS_OK;
}

void channel_ucx_free_slot(struct ucx_slot *slot) {
    struct ucx *ucx = slot->ucx;
    channel_ucx_drop_data(ucx, slot->held);
    slot->held = NULL;
    ASSERT_OP(ucx->free_slot_count, <, ucx->config.slots);
    ucx->free_slots[ucx->free_slot_count++] = (uint32_t)(slot - ucx->slots);
}

static void queue_received(struct ucx_slot *slot) {
    struct ucx *ucx = slot->ucx;
    struct channel_event *event = channel_ucx_queue_event(ucx, CHANNEL_RECEIVED);
    event->slot = (uint32_t)(slot - ucx->slots);
    event->header = slot->header;
    event->payload = slot->payload;
    event->payload_bytes = slot->payload_bytes;
    ucx->stats.received_frames++;
    ucx->stats.received_bytes += FRAME_BYTES + slot->payload_bytes;
}

/* A rendezvous that fails (its sender died) was never a message: the slot is free again. */
static void received_callback(void *request, ucs_status_t code, size_t bytes, void *user) {
    struct ucx_slot *slot = user;
    slot->ucx->under_way--;
    ucp_request_free(request);
    if (code == UCS_OK && bytes == slot->payload_bytes) {
        queue_received(slot);
    } else {
        channel_ucx_free_slot(slot);
    }
}

static void fetch(struct ucx_slot *slot, void *descriptor) {
    struct ucx *ucx = slot->ucx;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = received_callback,
        .user_data = slot,
        .memory_type = UCS_MEMORY_TYPE_HOST,
        .memh = ucx_memory_handle(&ucx->memory, slot->memory),
    };
    slot->payload = slot->memory;
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(ucx->worker, descriptor, slot->memory, slot->payload_bytes, &param);
    if (!request) {
        queue_received(slot);
    } else if (UCS_PTR_IS_ERR(request)) {
        channel_ucx_free_slot(slot);
    } else {
        ucx->under_way++;
    }
}

void channel_ucx_fill_slots(struct ucx *ucx) {
    while (ucx->waiting_count > 0 && ucx->free_slot_count > 0) {
        const struct ucx_waiting *waiting = &ucx->waiting[ucx->waiting_head];
        struct ucx_slot *slot = &ucx->slots[ucx->free_slots[--ucx->free_slot_count]];
        memcpy(slot->header, waiting->header, FRAME_BYTES);
        slot->payload_bytes = waiting->payload_bytes;
        ucx->waiting_head = (ucx->waiting_head + 1) % CHANNEL_UCX_WAITING_MAX;
        ucx->waiting_count--;
        if (waiting->rendezvous) {
            fetch(slot, waiting->data);
            continue;
        }
        ucx->waiting_eager--;
        slot->held = waiting->data;
        slot->payload = waiting->data ? waiting->data : slot->memory;
        if (waiting->data && (uintptr_t)waiting->data % MEMORY_ALIGN != 0) {
            /* Codecs read values in place, so a payload must be aligned as a slot is. */
            memcpy(slot->memory, waiting->data, waiting->payload_bytes);
            slot->payload = slot->memory;
            slot->held = NULL;
            channel_ucx_drop_data(ucx, waiting->data);
        }
        queue_received(slot);
    }
}

bool channel_ucx_is_full(const struct ucx *ucx) {
    return ucx->waiting_eager >= WAITING_EAGER_MARK ||
           ucx->waiting_count > CHANNEL_UCX_WAITING_MAX - WAITING_BURST;
}
