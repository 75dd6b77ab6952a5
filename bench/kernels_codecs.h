/* kernels_codecs.h - how fast a device encodes blocks, and decodes them into a sum, by each codec
 * that it has.
 *
 * The values are as many as the device's copy moves, in blocks of a plan's size, one after the
 * other as in a push; like a gradient they are normal, with a scale for each row. What a codec does
 * is compared with the copy of as many values in the same turns.
 * On a CUDA device payloads stay there, so an encoding has the payload's checksum in it; on the
 * host one core encodes and decodes, as an exchange and a shard do. What is added of powersgd's
 * shared factors is what is sent: making the gradient of it (encoder_expand) is not in it.
 * One thread, which drives the device.
 */
#ifndef RUBATO_BENCH_KERNELS_CODECS_H
#define RUBATO_BENCH_KERNELS_CODECS_H

#include "bench/kernels_rig.h"

#include <stdio.h>

/* Prints a table, and a line a codec to json unless that is NULL. MEMORY or DEVICE, logged. */
enum status kernels_codecs(struct rig *rig, FILE *json) WARN_UNUSED;

#endif
