/* plan.h - from a model's tensors to blocks, and from blocks to the shards that own them.
 *
 * A pure function of (tensors, options): every process computes it and compares
 * digests before anything moves.
 * The model's parameters form one flat vector of f32 in an order the plan chooses: each matrix
 * (two or more dimensions: rows = shape[0], cols = the rest) by itself, then all vectors together.
 * A block is a contiguous piece of that vector: a slice of whole rows of one matrix with at most
 * `block_values` values (one row at least), or a pack of whole vectors, in model order, likewise
 * (one vector at least). Blocks depend on tensors and block size alone, never on the shard count,
 * so sums over blocks in order of id give the same bits for any number of shards. Decay and
 * learning-rate factors are a block's (a pack never mixes different ones).
 * Fragments are balanced by values: longest block first into the emptiest; frozen blocks have none.
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
    bool decay;     /* weight decay applies */
    bool embedding; /* rows are looked up by token or position, or score tokens (a head) */
};

/* The fragment of a block that no report carries: its weights never change. */
#define PLAN_FROZEN UINT64_MAX

struct plan_block {
    uint64_t id;         /* its index in plan.blocks */
    uint64_t offset;     /* first value in the flat vector */
    uint64_t count;      /* values, at most FRAME_PAYLOAD_MAX / 4 */
    uint64_t rows, cols; /* rows * cols == count; a pack has one row */
    /* It touches the tensors plan.pack_order[first_tensor .. first_tensor + tensor_count - 1]: one
     * for a slice of a matrix, all of a pack's vectors. */
    uint64_t first_tensor, tensor_count;
    uint64_t shard;
    uint64_t fragment; /* the part of the model that it reports with, or PLAN_FROZEN */
    double decay;      /* factor of the job's weight decay; 0: none */
    double rate;       /* factor of the learning rate; 0: frozen */
    bool hidden;       /* a whole matrix that is no embedding */
};

struct plan_options {
    uint64_t shards;
    uint64_t block_values; /* values a block aims at */
    uint64_t fragments;    /* 0 or 1: one */
    bool whole;            /* each matrix is one block where a frame can hold it */
    const char *rates;  /* factors of tensors' learning rates and weight decays, in the form that */
    const char *decays; /* plan_factor() takes; NULL or "": all 1 */
};

/* The factor of the first of "PATTERN=FACTOR,PATTERN=FACTOR" whose pattern (fnmatch) is the name's;
 * 1 where there is none. INVALID, *factor unchanged, where the text has no such form, or a factor
 * is negative or not finite. Pure. */
enum status plan_factor(const char *text, const char *name, double *factor) WARN_UNUSED;

struct plan {
    struct tensor *tensors; /* a copy of the model's list, in the model's order */
    uint64_t *offsets;      /* [tensor_count] where each starts in the flat vector */
    uint64_t tensor_count;
    uint64_t *pack_order; /* [tensor_count] the tensors in order of their offset */
    struct plan_block *blocks;
    uint64_t block_count;
    uint64_t shard_count;
    uint64_t fragment_count;
    uint64_t value_count;   /* of the flat vector */
    uint64_t largest_block; /* values */
    uint64_t digest;        /* XXH3 over tensors, blocks and placement */
};

/* INVALID (logged, with the tensor's name where there is one): no tensors, too many, a name that is
 * empty, doubled or not printable ASCII, a zero dimension, an overflow of 64 bits, a row or vector
 * too long for one frame, more than PLAN_BLOCKS_MAX blocks, no shards or too many, block_values
 * outside 1..FRAME_PAYLOAD_MAX / 4, more fragments than blocks that are not frozen, a malformed
 * list of factors, every block frozen. The plan is unchanged then. Its memory is its own;
 * plan_free() it. */
enum status plan_build(struct plan *plan, const struct tensor *tensors, uint64_t tensor_count,
                       const struct plan_options *options) WARN_UNUSED;
void plan_free(struct plan *plan);

/* Values of a tensor, which a plan was made with. */
static inline uint64_t plan_values(const struct plan *plan, uint64_t tensor) {
    const struct tensor *shape = &plan->tensors[tensor];
    uint64_t values = 1;
    for (uint32_t i = 0; i < shape->dims; i++)
        values *= shape->shape[i];
    return values;
}

/* Digest of a tensor list alone: what workers compare before a plan exists. Takes any list, also
 * one that plan_build would refuse. */
uint64_t plan_tensor_digest(const struct tensor *tensors, uint64_t tensor_count);

/* max / mean of bytes a shard; 1.0 is perfect. */
double plan_balance(const struct plan *plan);

/* A few lines for the log and the user: values, blocks, shards, balance. */
void plan_print(const struct plan *plan, FILE *out);

#endif
