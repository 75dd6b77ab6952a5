#include "bench/kernels_timed.h"

#include "base/assert.h"
#include "base/clock.h"
#include "bench/median.h"

static const double turn_s = 0.02;

static enum status seconds_of(const struct rig *rig, const struct timed *timed, int64_t calls,
                              double *seconds) {
    int64_t start_ns = clock_now_ns();
    for (int64_t i = 0; i < calls; i++)
        timed->run(rig);
    TRY(device_wait(rig->device, DEVICE_COMPUTE));
    *seconds = (double)(clock_now_ns() - start_ns) / (double)CLOCK_S;
    return STATUS_OK;
}

enum status kernels_measure(const struct rig *rig, struct timed *list, size_t count) {
    double turns[KERNELS_TIMED_MAX][KERNELS_TURNS_MAX];
    int64_t calls[KERNELS_TIMED_MAX];
    double seconds;
    ASSERT_OP(count, <=, (size_t)KERNELS_TIMED_MAX);
    for (size_t i = 0; i < count; i++) {
        TRY(seconds_of(rig, &list[i], 1, &seconds)); /* the first one prepares */
        TRY(seconds_of(rig, &list[i], 1, &seconds));
        calls[i] = 1 + (int64_t)(turn_s / (seconds > 1e-6 ? seconds : 1e-6));
    }
    for (int64_t turn = 0; turn < rig->bench->turns; turn++) {
        for (size_t i = 0; i < count; i++) {
            TRY(seconds_of(rig, &list[i], calls[i], &seconds));
            turns[i][turn] = seconds / (double)calls[i];
        }
    }
    for (size_t i = 0; i < count; i++)
        list[i].seconds = median(turns[i], (size_t)rig->bench->turns);
    return STATUS_OK;
}
