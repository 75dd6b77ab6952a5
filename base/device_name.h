/* device_name.h - what --device names: the devices that compute (kernels/device.h), one or several.
 *
 * Only the text is looked at: whether they are there is seen where they are opened. Pure.
 */
#ifndef RUBATO_BASE_DEVICE_NAME_H
#define RUBATO_BASE_DEVICE_NAME_H

#include <stdbool.h>

enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_KINDS };

enum { DEVICE_NAMES_MAX = 16 };

struct device_names {
    enum device_kind kind;
    int count;                     /* 0: all that there are */
    int indices[DEVICE_NAMES_MAX]; /* on the host all 0 */
};

/* "cpu", "cuda". */
const char *device_kind_name(enum device_kind kind);

/* One device: "cpu", or "cuda:1". False: it is none, or not one alone. */
bool device_name_parse(const char *text, enum device_kind *kind, int *index);

/* That, or several: "cpu:3", as many on the host; "cuda", all that there are; "cuda:0,2", these.
 * False: it is none of these, a device is named twice, or there are too many. */
bool device_names_parse(const char *text, struct device_names *names);

#endif
