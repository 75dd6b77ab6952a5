#include "server/vote.h"

#include "base/assert.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Who has a say in the open round. */
static void open_round(struct vote *vote) {
    uint64_t fragment = (vote->round - 1) % vote->fragment_count;
    memset(vote->owned, 0, (size_t)vote->shard_count * sizeof(uint64_t));
    vote->voters = 0;
    for (uint64_t block = 0; block < vote->block_count; block++) {
        if (vote->fragments[block] == fragment) {
            uint64_t shard = vote->owner[block];
            vote->voters += vote->owned[shard] == 0 ? 1 : 0;
            vote->owned[shard]++;
        }
    }
}

void vote_init(struct vote *vote, const struct plan *plan) {
    *vote = (struct vote){.round = 1,
                          .shard_count = plan->shard_count,
                          .block_count = plan->block_count,
                          .fragment_count = plan->fragment_count};
    vote->owner = memory_zeroed((size_t)plan->block_count, sizeof(uint64_t));
    vote->fragments = memory_zeroed((size_t)plan->block_count, sizeof(uint64_t));
    vote->owned = memory_zeroed((size_t)plan->shard_count, sizeof(uint64_t));
    vote->has_reported = memory_zeroed((size_t)plan->shard_count, sizeof(bool));
    vote->sums_of_squares = memory_zeroed((size_t)plan->block_count, sizeof(double));
    for (uint64_t block = 0; block < plan->block_count; block++) {
        vote->owner[block] = plan->blocks[block].shard;
        vote->fragments[block] = plan->blocks[block].fragment;
    }
    open_round(vote);
}

void vote_free(struct vote *vote) {
    free(vote->owner);
    free(vote->fragments);
    free(vote->owned);
    free(vote->has_reported);
    free(vote->sums_of_squares);
    *vote = (struct vote){0};
}

/* Are the report's blocks all those of its shard in the fragment, each once? Without this
 * a wrong report would leave another round's sums in the norm. */
static bool blocks_fit(const struct vote *vote, const struct vote_report *report) {
    uint64_t fragment = (vote->round - 1) % vote->fragment_count;
    if (report->block_count == 0 || report->block_count != vote->owned[report->shard]) {
        return false;
    }
    for (uint64_t i = 0; i < report->block_count; i++) {
        uint64_t block = report->blocks[i];
        if (block >= vote->block_count || vote->owner[block] != report->shard ||
            vote->fragments[block] != fragment || (i > 0 && block <= report->blocks[i - 1])) {
            return false;
        }
    }
    return true;
}

/* All shards sum the same frames in the same order, so even the bits of the weight agree. */
static bool contributors_fit(const struct vote *vote, const struct vote_report *report) {
    if (report->contributors == 0 || !isfinite(report->weight) || report->weight < 0) {
        return false;
    }
    return vote->reported == 0 ||
           (report->contributors == vote->contributors && !(report->weight < vote->weight) &&
            !(report->weight > vote->weight));
}

enum status vote_add(struct vote *vote, const struct vote_report *report) {
    if (report->shard >= vote->shard_count || report->round > vote->round) {
        return STATUS_MISMATCH;
    }
    if (report->round < vote->round || vote->has_reported[report->shard]) {
        return STATUS_STALE;
    }
    if (!contributors_fit(vote, report) || !blocks_fit(vote, report)) {
        return STATUS_MISMATCH;
    }
    for (uint64_t i = 0; i < report->block_count; i++) {
        vote->sums_of_squares[report->blocks[i]] = report->sums_of_squares[i];
    }
    vote->contributors = report->contributors;
    vote->weight = report->weight;
    vote->nonfinite = vote->nonfinite || report->nonfinite;
    vote->has_reported[report->shard] = true;
    vote->reported++;
    return vote->reported == vote->voters ? STATUS_OK : STATUS_AGAIN;
}

float vote_clip_factor(double clip, double norm) {
    if (clip <= 0) {
        return 1.0F;
    }
    double factor = clip / (norm + 1e-6);
    return factor < 1 ? (float)factor : 1.0F;
}

void vote_decide(struct vote *vote, double clip, struct vote_verdict *verdict) {
    ASSERT_OP(vote->reported, ==, vote->voters);
    uint64_t fragment = (vote->round - 1) % vote->fragment_count;
    double total = 0;
    for (uint64_t block = 0; block < vote->block_count; block++) {
        total += vote->fragments[block] == fragment ? vote->sums_of_squares[block] : 0;
    }
    bool empty = vote->weight <= 0;
    double norm = empty ? 0 : sqrt(total) / vote->weight;
    bool nonfinite = vote->nonfinite || !isfinite(total) || !isfinite(norm);
    bool skip = nonfinite || empty;
    *verdict = (struct vote_verdict){.round = vote->round,
                                     .skip = skip,
                                     .nonfinite = nonfinite,
                                     .scale = skip ? 0 : vote_clip_factor(clip, norm),
                                     .norm = norm};
    vote->skipped += skip ? 1 : 0;
    if (nonfinite || !skip) {
        vote->skipped_in_row = nonfinite ? vote->skipped_in_row + 1 : 0;
    }
    vote->round++;
    vote->reported = 0;
    vote->nonfinite = false;
    memset(vote->has_reported, 0, (size_t)vote->shard_count * sizeof(bool));
    if (vote->fragment_count > 1) {
        open_round(vote);
    }
}
