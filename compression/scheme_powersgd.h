/* scheme_powersgd.h - what both forms of powersgd share, and the device's (encoder_device.h). A
 * factor is `rank` vectors, one after the other. Internal to compression/ and its tests.
 * Where values overflow, factors have NaNs, which are a payload's bytes: all of them are the one
 * that the chip makes of numbers, so that it matters nowhere which of two goes on.
 */
#ifndef RUBATO_COMPRESSION_SCHEME_POWERSGD_H
#define RUBATO_COMPRESSION_SCHEME_POWERSGD_H

#include "compression/scheme.h"

#define POWERSGD_RANK_MAX CODEC_RANK_MAX

size_t powersgd_rank(const struct scheme_run *run);

/* vector [n] = the noise, which all workers share, of a block's index-th vector. Any thread. */
void powersgd_noise(uint64_t seed, uint64_t block, size_t index, float *vector, size_t n);

/* A vector [n] of zeros, as at first, would stay so: it becomes noise. */
void powersgd_revive(const struct scheme_run *run, float *vector, size_t n, size_t index);

/* vectors [rank, n]: Gram-Schmidt; one that lies in the others' span becomes zero. */
void powersgd_orthonormalize(const struct codec_loops *loops, float *vectors, size_t rank,
                             size_t n);

/* y [rank, rows] = the rows of a [rows, cols] times x [rank, cols]; and
 * y [rank, cols] = its columns times x [rank, rows]. */
void powersgd_times_rows(const struct scheme_run *run, const float *a, const float *x, float *y);
void powersgd_times_cols(const struct scheme_run *run, const float *a, const float *x, float *y);

#endif
