/* scheme_powersgd.h - what both forms of powersgd share. A factor is `rank` vectors, one after the
 * other. Internal to compression/scheme_powersgd*.c. */
#ifndef RUBATO_COMPRESSION_SCHEME_POWERSGD_H
#define RUBATO_COMPRESSION_SCHEME_POWERSGD_H

#include "compression/scheme.h"

#define POWERSGD_RANK_MAX CODEC_RANK_MAX

size_t powersgd_rank(const struct scheme_run *run);

/* A vector [n] of zeros, as at first, would stay so: it becomes noise that all workers share. */
void powersgd_revive(const struct scheme_run *run, float *vector, size_t n, size_t index);

/* vectors [rank, n]: Gram-Schmidt; one that lies in the others' span becomes zero. */
void powersgd_orthonormalize(const struct codec_loops *loops, float *vectors, size_t rank,
                             size_t n);

/* y [rank, rows] = the rows of a [rows, cols] times x [rank, cols]; and
 * y [rank, cols] = its columns times x [rank, rows]. */
void powersgd_times_rows(const struct scheme_run *run, const float *a, const float *x, float *y);
void powersgd_times_cols(const struct scheme_run *run, const float *a, const float *x, float *y);

#endif
