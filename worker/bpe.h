/* bpe.h - byte-pair merging: the bytes of one piece of text become tokens.
 *
 * A piece starts as one token a byte. Again and again the neighbouring pair of the lowest rank, the
 * leftmost of equals, becomes one token, until no pair has a rank. (Sennrich, Haddow, Birch,
 * "Neural machine translation of rare words with subword units", ACL 2016; on bytes as in GPT-2.)
 * Short pieces, nearly all, are scanned for the lowest rank each time; long ones keep a heap of
 * candidates over a linked list, n log n, so that a megabyte of one letter takes no minutes.
 */
#ifndef RUBATO_WORKER_BPE_H
#define RUBATO_WORKER_BPE_H

#include <stddef.h>
#include <stdint.h>

#define BPE_PIECE_MAX ((size_t)1 << 28) /* bytes */

struct bpe_pair {
    uint64_t key; /* left << 32 | right */
    uint32_t rank;
    uint32_t id; /* of the token that the two become */
};

struct bpe {
    struct bpe_pair *pairs; /* a hash table, linear probing, at most half full */
    uint64_t slots;         /* a power of two; 0 before the first pair */
    uint64_t count;
    uint32_t byte_ids[256];
};

/* One thread's working memory; grows to the longest piece. Starts zeroed. */
struct bpe_scratch {
    uint32_t *ids; /* the result is in its beginning */
    uint32_t *ranks, *next, *previous;
    uint64_t *heap;
    size_t capacity;
};

/* left, right -> id, at this rank (below 2^32 - 1). The first of equal pairs stays. */
void bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
void bpe_free(struct bpe *bpe);

/* piece [1 <= bytes <= BPE_PIECE_MAX] -> scratch->ids; returns how many. Takes memory when a piece
 * is longer than any before. Any thread, each with its scratch. */
size_t bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, const uint8_t *piece,
                 size_t bytes);

/* Harmless on a zeroed struct. */
void bpe_scratch_free(struct bpe_scratch *scratch);

#endif
