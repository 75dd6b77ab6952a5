/* plan.h - from a model's tensors to blocks, and from blocks to the shards that own them.
 *
 * A pure function of (tensors, shard count, block size): every process computes it and compares
 * digests before anything moves.
 * The model's parameters form one flat vector of f32 in an order the plan chooses: each matrix
 * (two or more dimensions: rows = shape[0], cols = the rest) by itself, then all vectors together.
 * A block is a contiguous piece of that vector: a slice of whole rows of one matrix with at most
 * `block_values` values (one row at least), or a pack of whole vectors, in model order, likewise
 * (one vector at least). Blocks depend on tensors and block size alone, never on the shard count,
 * so sums over blocks in order of id give the same bits for any number of shards. Weight decay is
 * one flag a block (a pack never mixes both).
 * Invariant: block i starts where block i - 1 ends; together they are the whole flat vector.
 * Placement: longest block first onto the shard with the fewest bytes, ties to the lower id (LPT;
 * Graham, "Bounds on multiprocessing timing anomalies", 1969). More shards than blocks is legal:
 * those shards own nothing.
 * All counts are 64-bit. Read-only once built; any thread may read.
 */
#ifndef RUBATO_PROTO_PLAN_H
#define RUBATO_PROTO_PLAN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TENSOR_NAME_MAX  ((size_t)128) /* with its 0 byte */
#define TENSOR_DIMS_MAX  8
#define PLAN_TENSORS_MAX ((size_t)65536)
#define PLAN_SHARDS_MAX  ((uint64_t)65536)
#define PLAN_BLOCKS_MAX  ((uint64_t)1 << 22)

struct tensor {
    char name[TENSOR_NAME_MAX];
    uint32_t dims; /* 1..TENSOR_DIMS_MAX */
    uint64_t shape[TENSOR_DIMS_MAX];
    bool decay; /* weight decay applies */
};

struct plan_block {
    uint64_t id;         /* its index in plan.blocks */
    uint64_t offset;     /* first value in the flat vector */
    uint64_t count;      /* values, at most FRAME_PAYLOAD_MAX / 4 */
    uint64_t rows, cols; /* rows * cols == count; a pack has one row */
    /* It touches the tensors plan.pack_order[first_tensor .. first_tensor + tensor_count - 1]: one
     * for a slice of a matrix, all of a pack's vectors. */
    uint64_t first_tensor, tensor_count;
    uint64_t shard;
    bool decay;
};

struct plan {
    struct tensor *tensors; /* a copy of the model's list, in the model's order */
    uint64_t *offsets;      /* [tensor_count] where each starts in the flat vector */
    uint64_t tensor_count;
    uint64_t *pack_order; /* [tensor_count] the tensors in order of their offset */
    struct plan_block *blocks;
    uint64_t block_count;
    uint64_t shard_count;
    uint64_t value_count;   /* of the flat vector */
    uint64_t largest_block; /* values */
    uint64_t digest;        /* XXH3 over tensors, blocks and placement */
};

/* INVALID (logged, with the tensor's name where there is one): no tensors, too many, a name that is
 * empty, doubled or not printable ASCII, a zero dimension, an overflow of 64 bits, a row or vector
 * too long for one frame, more than PLAN_BLOCKS_MAX blocks, shard_count 0 or too large,
 * block_values outside 1..FRAME_PAYLOAD_MAX / 4. The plan is unchanged then. Its memory is its own;
 * plan_free() it. */
enum status plan_build(struct plan *plan, const struct tensor *tensors, uint64_t tensor_count,
                       uint64_t shard_count, uint64_t block_values) WARN_UNUSED;
void plan_free(struct plan *plan);

/* Digest of a tensor list alone: what workers compare before a plan exists. Takes any list, also
 * one that plan_build would refuse. */
uint64_t plan_tensor_digest(const struct tensor *tensors, uint64_t tensor_count);

/* max / mean of bytes a shard; 1.0 is perfect. */
double plan_balance(const struct plan *plan);

/* A few lines for the log and the user: values, blocks, shards, balance. */
void plan_print(const struct plan *plan, FILE *out);

#endif
