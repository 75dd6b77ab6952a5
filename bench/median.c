#include "bench/median.h"

#include "base/assert.h"

#include <stdlib.h>

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

double median(double *values, size_t count) {
    ASSERT(count >= 1);
    qsort(values, count, sizeof *values, compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
