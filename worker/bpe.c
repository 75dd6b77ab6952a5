#include "worker/bpe.h"

#include "base/assert.h"
#include "base/memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NO_RANK     UINT32_MAX
#define NONE        UINT32_MAX /* no neighbour; or, as an id, merged into its left neighbour */
#define EMPTY       UINT64_MAX /* a key that no pair has */
#define SHORT_BYTES ((size_t)64)
#define SLOTS_FIRST ((uint64_t)1024)

static uint64_t pair_key(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

static uint64_t slot_of(const struct bpe *bpe, uint64_t key) {
    uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15);
    return (hash ^ hash >> 32) & (bpe->slots - 1);
}

/* The pair, or the free slot where it would be. */
static struct bpe_pair *probe(const struct bpe *bpe, uint64_t key) {
    uint64_t slot = slot_of(bpe, key);
    while (bpe->pairs[slot].key != key && bpe->pairs[slot].key != EMPTY)
        slot = (slot + 1) & (bpe->slots - 1);
    return &bpe->pairs[slot];
}

/* NO_RANK when the two do not merge. */
static uint32_t find(const struct bpe *bpe, uint32_t left, uint32_t right, uint32_t *id) {
    const struct bpe_pair *pair = probe(bpe, pair_key(left, right));
    if (pair->key == EMPTY) return NO_RANK;
    *id = pair->id;
    return pair->rank;
}

static uint32_t rank_of(const struct bpe *bpe, uint32_t left, uint32_t right) {
    uint32_t id = 0;
    return find(bpe, left, right, &id);
}

static void grow_table(struct bpe *bpe) {
    struct bpe old = *bpe;
    bpe->slots = old.slots == 0 ? SLOTS_FIRST : old.slots * 2;
    bpe->pairs = memory_zeroed((size_t)bpe->slots, sizeof(*bpe->pairs));
    for (uint64_t i = 0; i < bpe->slots; i++)
        bpe->pairs[i].key = EMPTY;
    for (uint64_t i = 0; i < old.slots; i++) {
        if (old.pairs[i].key != EMPTY) *probe(bpe, old.pairs[i].key) = old.pairs[i];
    }
    free(old.pairs);
}

void bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id) {
    ASSERT(rank != NO_RANK && left != NONE && right != NONE);
    if (bpe->count * 2 >= bpe->slots) grow_table(bpe);
    struct bpe_pair *pair = probe(bpe, pair_key(left, right));
    if (pair->key != EMPTY) return;
    *pair = (struct bpe_pair){.key = pair_key(left, right), .rank = rank, .id = id};
    bpe->count++;
}

void bpe_free(struct bpe *bpe) {
    free(bpe->pairs);
    *bpe = (struct bpe){0};
}

static void reserve(struct bpe_scratch *scratch, size_t bytes) {
    if (bytes <= scratch->capacity) return;
    size_t capacity = scratch->capacity == 0 ? SHORT_BYTES : scratch->capacity;
    while (capacity < bytes)
        capacity *= 2;
    bpe_scratch_free(scratch);
    scratch->ids = memory_zeroed(capacity, sizeof(uint32_t));
    scratch->ranks = memory_zeroed(capacity, sizeof(uint32_t));
    scratch->next = memory_zeroed(capacity, sizeof(uint32_t));
    scratch->previous = memory_zeroed(capacity, sizeof(uint32_t));
    /* Each byte's pair, and two for each merge. */
    scratch->heap = memory_zeroed(3 * capacity, sizeof(uint64_t));
    scratch->capacity = capacity;
}

void bpe_scratch_free(struct bpe_scratch *scratch) {
    free(scratch->ids);
    free(scratch->ranks);
    free(scratch->next);
    free(scratch->previous);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

/* ranks [i] is that of the pair (i, i + 1). */
static size_t merge_short(const struct bpe *bpe, uint32_t *ids, uint32_t *ranks, size_t count) {
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = rank_of(bpe, ids[i], ids[i + 1]);
    while (count > 1) {
        size_t best = 0;
        uint32_t id = 0;
        for (size_t i = 1; i + 1 < count; i++)
            best = ranks[i] < ranks[best] ? i : best;
        if (ranks[best] == NO_RANK) break;
        (void)find(bpe, ids[best], ids[best + 1], &id);
        ids[best] = id;
        memmove(ids + best + 1, ids + best + 2, (count - best - 2) * sizeof(*ids));
        memmove(ranks + best, ranks + best + 1, (count - best - 2) * sizeof(*ranks));
        count--;
        if (best + 1 < count) ranks[best] = rank_of(bpe, ids[best], ids[best + 1]);
        if (best > 0) ranks[best - 1] = rank_of(bpe, ids[best - 1], ids[best]);
    }
    return count;
}

/* A min-heap of rank << 32 | position: the lowest rank first, the leftmost of equals. */
static void heap_push(uint64_t *heap, size_t *count, uint64_t entry) {
    size_t at = (*count)++;
    while (at > 0 && heap[(at - 1) / 2] > entry) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count) {
    uint64_t top = heap[0], last = heap[--*count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= *count) break;
        if (child + 1 < *count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

static void push_pair(const struct bpe *bpe, struct bpe_scratch *scratch, size_t *waiting,
                      uint32_t at) {
    uint32_t rank = rank_of(bpe, scratch->ids[at], scratch->ids[scratch->next[at]]);
    if (rank != NO_RANK) heap_push(scratch->heap, waiting, (uint64_t)rank << 32 | at);
}

/* The tokens are a linked list over the places of their first bytes. A candidate whose pair has
 * changed since is known by its rank, or by its left token having been merged away. */
static size_t merge_long(const struct bpe *bpe, struct bpe_scratch *scratch, size_t count) {
    uint32_t *ids = scratch->ids, *next = scratch->next, *previous = scratch->previous;
    size_t waiting = 0;
    for (uint32_t i = 0; i < count; i++) {
        next[i] = i + 1 < count ? i + 1 : NONE;
        previous[i] = i > 0 ? i - 1 : NONE;
    }
    for (uint32_t i = 0; i + 1 < count; i++)
        push_pair(bpe, scratch, &waiting, i);
    while (waiting > 0) {
        uint64_t top = heap_pop(scratch->heap, &waiting);
        uint32_t left = (uint32_t)top, id = 0;
        if (ids[left] == NONE || next[left] == NONE) continue;
        uint32_t right = next[left];
        if (find(bpe, ids[left], ids[right], &id) != (uint32_t)(top >> 32)) continue;
        ids[left] = id;
        ids[right] = NONE;
        next[left] = next[right];
        if (next[left] != NONE) {
            previous[next[left]] = left;
            push_pair(bpe, scratch, &waiting, left);
        }
        if (previous[left] != NONE) push_pair(bpe, scratch, &waiting, previous[left]);
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] != NONE) ids[kept++] = ids[i];
    }
    return kept;
}

size_t bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, const uint8_t *piece,
                 size_t bytes) {
    ASSERT(bytes >= 1 && bytes <= BPE_PIECE_MAX);
    reserve(scratch, bytes);
    for (size_t i = 0; i < bytes; i++)
        scratch->ids[i] = bpe->byte_ids[piece[i]];
    if (bpe->slots == 0) return bytes;
    if (bytes <= SHORT_BYTES) return merge_short(bpe, scratch->ids, scratch->ranks, bytes);
    return merge_long(bpe, scratch, bytes);
}
