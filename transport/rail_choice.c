#include "transport/rail_choice.h"

#include "base/assert.h"
#include "kernels/device.h"
#include "kernels/topology.h"
#include "transport/ucx_devices.h"

#include <string.h>

/* The names with a port: network interfaces have none. Returns how many. */
static int split_names(const char *net_devices, char names[RAIL_NAMES_MAX][RAIL_NAME_BYTES]) {
    int count = 0;
    for (const char *name = net_devices; *name && count < RAIL_NAMES_MAX;) {
        size_t length = strcspn(name, ",");
        if (length < RAIL_NAME_BYTES && memchr(name, ':', length) != NULL) {
            memcpy(names[count], name, length);
            names[count++][length] = '\0';
        }
        name += length + (name[length] == ',');
    }
    return count;
}

void rail_choice_spread(const int *depths, const int *numbers, int count, int name_count,
                        int *chosen) {
    int users[RAIL_NAMES_MAX] = {0};
    ASSERT(name_count >= 1 && name_count <= RAIL_NAMES_MAX);
    for (int i = 0; i < count; i++) {
        const int *of_device = depths + (size_t)i * (size_t)name_count;
        int equals[RAIL_NAMES_MAX], equal_count = 0, deepest = of_device[0];
        for (int n = 0; n < name_count; n++)
            deepest = of_device[n] > deepest ? of_device[n] : deepest;
        for (int n = 0; n < name_count; n++)
            if (of_device[n] == deepest) equals[equal_count++] = n;
        ASSERT(equal_count > 0);
        chosen[i] = equals[numbers[i] % equal_count];
        for (int k = 1; k < equal_count; k++) {
            int other = equals[(numbers[i] + k) % equal_count];
            if (users[other] < users[chosen[i]]) chosen[i] = other;
        }
        users[chosen[i]]++;
    }
}

/* depths [count][name_count], as topology_nearness() tells them. */
static void find_depths(struct device *const *devices, int count,
                        char names[RAIL_NAMES_MAX][RAIL_NAME_BYTES], int name_count, int *depths) {
    char buses[GROUP_MAX][32], cards[RAIL_NAMES_MAX][RAIL_NAME_BYTES];
    const char *bus_texts[GROUP_MAX], *card_texts[RAIL_NAMES_MAX];
    for (int i = 0; i < count; i++) {
        if (!device_bus_id(devices[i], buses[i], sizeof buses[i])) buses[i][0] = '\0';
        bus_texts[i] = buses[i];
    }
    for (int n = 0; n < name_count; n++) {
        memcpy(cards[n], names[n], RAIL_NAME_BYTES);
        cards[n][strcspn(cards[n], ":")] = '\0';
        card_texts[n] = cards[n];
    }
    topology_nearness(bus_texts, count, card_texts, name_count, depths);
}

void rail_choice_make(struct rail_choice *choice, struct device *const *devices, int count,
                      const char *net_devices, const char *tls) {
    char names[RAIL_NAMES_MAX][RAIL_NAME_BYTES];
    int numbers[GROUP_MAX], chosen[GROUP_MAX], depths[GROUP_MAX * RAIL_NAMES_MAX];
    ASSERT(count <= GROUP_MAX);
    choice->count = 0;
    int name_count = ucx_devices_possible(tls) ? split_names(net_devices, names) : 0;
    if (count == 0 || name_count == 0 || (count == 1 && name_count == 1)) return;
    for (int i = 0; i < count; i++)
        numbers[i] = devices[i]->index;
    find_depths(devices, count, names, name_count, depths);
    rail_choice_spread(depths, numbers, count, name_count, chosen);
    for (int i = 0; i < count; i++)
        memcpy(choice->names[i], names[chosen[i]], RAIL_NAME_BYTES);
    choice->count = count;
}
