#include "transport/ucx_devices.h"

#include "base/assert.h"
#include "transport/channel_ucx.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

bool ucx_devices_possible(const char *tls) {
    return channel_ucx_is_verbs(tls) && strstr(tls, "tcp") == NULL;
}

void ucx_devices_init(struct ucx_devices *devices, bool wanted, const char *tls,
                      char transports[OPTION_TEXT_MAX]) {
    *devices = (struct ucx_devices){.wanted = wanted && ucx_devices_possible(tls)};
    (void)snprintf(transports, OPTION_TEXT_MAX, "%s%s", tls, devices->wanted ? ",cuda" : "");
}

enum status ucx_devices_add(struct ucx_devices *devices, ucp_context_h context, const void *memory,
                            size_t bytes) {
    ucp_context_attr_t knows = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    if (!devices->wanted || ucp_context_query(context, &knows) != UCS_OK ||
        !(knows.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA))) {
        return STATUS_UNSUPPORTED;
    }
    if (bytes == 0) return STATUS_OK;
    ASSERT(devices->bytes == 0);
    devices->memory = memory;
    devices->bytes = bytes;
    return STATUS_OK;
}

ucs_memory_type_t ucx_devices_type(const struct ucx_devices *devices, const void *payload) {
    bool there = (uintptr_t)payload - (uintptr_t)devices->memory < devices->bytes;
    return there ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}
