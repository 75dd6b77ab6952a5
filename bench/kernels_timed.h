/* kernels_timed.h - the operations that bench_kernels times, and how.
 *
 * An operation is queued until about 20 ms of work are there, then waited for. Those of a list take
 * turns, so that a clock that falls slows all of them.
 */
#ifndef RUBATO_BENCH_KERNELS_TIMED_H
#define RUBATO_BENCH_KERNELS_TIMED_H

#include "bench/kernels_rig.h"

enum { KERNELS_TURNS_MAX = 99, KERNELS_TIMED_MAX = 64 };

/* What an operation's rate is compared with: that of the device's copy, or of its largest product
 * of a type, which is the first row with this ceiling in a list. */
enum ceiling { CEILING_COPY, CEILING_F32, CEILING_TF32, CEILING_BF16, CEILINGS };

struct timed {
    const char *name;
    enum ceiling ceiling;
    double work; /* of a call: bytes where the ceiling is the copy, else FLOPs */
    void (*run)(const struct rig *rig);
    double seconds; /* of a call, the median of the turns */
};

/* Sets their seconds. DEVICE, logged. */
enum status kernels_measure(const struct rig *rig, struct timed *list, size_t count) WARN_UNUSED;

/* A model's operations (kernels_model.c), and what is done with its weights and gradients, block by
 * block (kernels_update.c) -> list [KERNELS_TIMED_MAX]; both return how many they are. */
size_t kernels_model_list(const struct rig *rig, struct timed *list);
size_t kernels_update_list(const struct rig *rig, struct timed *list);

/* Of the largest state that an optimizer of kernels_update_list() has of a block. */
size_t kernels_update_state_bytes(const struct rig *rig);

/* The copy alone. */
struct timed kernels_copy(const struct rig *rig);

#endif
