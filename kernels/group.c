#include "kernels/group.h"

#include "base/assert.h"

#include <string.h>

/* Digits -> number below 10000; returns what is behind them, NULL if there are none or too many. */
static const char *parse_number(const char *text, int *number) {
    const char *at = text;
    *number = 0;
    for (; *at >= '0' && *at <= '9' && at < text + 4; at++)
        *number = *number * 10 + (*at - '0');
    return at == text || (*at >= '0' && *at <= '9') ? NULL : at;
}

static bool add_device(struct group_devices *devices, int index) {
    if (devices->count == GROUP_MAX) return false;
    for (int i = 0; i < devices->count; i++) {
        if (devices->indices[i] == index) return false;
    }
    devices->indices[devices->count++] = index;
    return true;
}

static bool parse_list(const char *text, struct group_devices *devices) {
    int index;
    if (strcmp(text, "all") == 0) return true;
    for (;;) {
        text = parse_number(text, &index);
        if (text == NULL || !add_device(devices, index)) return false;
        if (*text == 0) return true;
        if (*text++ != ',') return false;
    }
}

bool group_parse(const char *text, struct group_devices *devices) {
    struct group_devices parsed = {.count = 0};
    char name[8];
    int members;
    const char *colon = strchr(text, ':');
    if (colon == NULL) {
        parsed.count = 1;
        if (!device_parse(text, &parsed.kind, &parsed.indices[0])) return false;
        *devices = parsed;
        return true;
    }
    size_t length = (size_t)(colon - text);
    if (length >= sizeof name) return false;
    memcpy(name, text, length);
    name[length] = 0;
    if (!device_parse(name, &parsed.kind, &parsed.indices[0])) return false;
    if (parsed.kind != DEVICE_CPU) {
        if (!parse_list(colon + 1, &parsed)) return false;
    } else {
        const char *end = parse_number(colon + 1, &members);
        if (end == NULL || *end != 0 || members < 1 || members > GROUP_MAX) return false;
        parsed.count = members;
    }
    *devices = parsed;
    return true;
}

enum status group_open(struct group **group, struct device *const *devices, int count,
                       int timeout_ms) {
    ASSERT(count >= 1 && count <= GROUP_MAX && timeout_ms >= 1);
    for (int i = 1; i < count; i++)
        ASSERT(devices[i]->backend == devices[0]->backend);
    return devices[0]->backend->group->open(group, devices, count, timeout_ms);
}

void group_close(struct group *group) {
    if (group != NULL) group->ops->close(group);
}

void group_sum_scatter(struct group *group, int rank, enum device_queue queue, const float *from,
                       float *to, int64_t count) {
    group->ops->sum_scatter(group, rank, queue, from, to, count);
}

void group_gather(struct group *group, int rank, enum device_queue queue, const void *from,
                  void *to, size_t bytes) {
    group->ops->gather(group, rank, queue, from, to, bytes);
}

enum status group_sync(struct group *group, int rank, const struct device_event *event) {
    return group->ops->sync(group, rank, event);
}

void group_abort(struct group *group, int rank) {
    group->ops->abort(group, rank);
}
