/* onednn_peak.h - how fast oneDNN itself multiplies: the measure of what products could reach.
 *
 * One matrix product alone, with every operand in the layout that oneDNN likes best for it, again
 * and again on the same memory: no packing, no bias, no other work between. That is an upper mark
 * for a training step, which must also pack, add and pass the caches on.
 */
#ifndef RUBATO_BENCH_ONEDNN_PEAK_H
#define RUBATO_BENCH_ONEDNN_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Median seconds of y [rows, cols] = a [rows, inner] b [inner, cols] over `repeats` products (1 to
 * 99), after one that is not counted. f32, or with `bf16` bfloat16 operands and an f32 result; the
 * calling thread's number of threads. Ends the process when oneDNN refuses. */
double onednn_peak_seconds(int64_t rows, int64_t inner, int64_t cols, bool bf16, int repeats);

/* Its version: name [bytes], as "oneDNN 3.1.2". */
void onednn_peak_name(char *name, size_t bytes);

#endif
