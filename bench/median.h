/* median.h - the figure that a bench prints of many measured ones.
 *
 * A mean would follow the one turn in which something else ran; the middle one does not.
 */
#ifndef RUBATO_BENCH_MEDIAN_H
#define RUBATO_BENCH_MEDIAN_H

#include <stddef.h>

/* The middle of values [count], count >= 1, or the mean of the two middle ones where their number
 * is even. Sorts them. */
double median(double *values, size_t count);

#endif
