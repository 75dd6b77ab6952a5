/* device_peak.h - how fast a GPU multiplies matrices, by its data sheet: what utilisation is
 * measured against.
 *
 * The figures are the makers' of dense products (without sparsity) with f32 sums. Only whole cards
 * are here, by the very name that the driver tells: a part of one (MIG), or a card with another
 * limit of power, is not taken for one that is faster.
 * To add a card: a row in device_peak.c.
 */
#ifndef RUBATO_KERNELS_DEVICE_PEAK_H
#define RUBATO_KERNELS_DEVICE_PEAK_H

#include "kernels/linear.h"

/* TFLOP/s of a device of this name (struct device) with operands of this type; 0: not known.
 * Pure. */
double device_peak_tflops(const char *name, enum compute_type type);

#endif
