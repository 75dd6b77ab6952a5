#include "server/vote.h"

#include "base/assert.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void vote_init(struct vote *vote, const struct plan *plan) {
    *vote = (struct vote){
        .round = 1, .shard_count = plan->shard_count, .block_count = plan->block_count};
    vote->owner = memory_zeroed((size_t)plan->block_count, sizeof(uint64_t));
    vote->owned = memory_zeroed((size_t)plan->shard_count, sizeof(uint64_t));
    vote->has_reported = memory_zeroed((size_t)plan->shard_count, sizeof(bool));
    vote->sums_of_squares = memory_zeroed((size_t)plan->block_count, sizeof(double));
    for (uint64_t block = 0; block < plan->block_count; block++) {
        uint64_t shard = plan->blocks[block].shard;
        vote->owner[block] = shard;
        vote->voters += vote->owned[shard] == 0 ? 1 : 0;
        vote->owned[shard]++;
    }
}

void vote_free(struct vote *vote) {
    free(vote->owner);
    free(vote->owned);
    free(vote->has_reported);
    free(vote->sums_of_squares);
    *vote = (struct vote){0};
}

/* Are the report's blocks all those of its shard, each once? Without this a wrong report would
 * leave another round's sums in the norm. */
static bool blocks_fit(const struct vote *vote, const struct vote_report *report) {
    if (report->block_count == 0 || report->block_count != vote->owned[report->shard]) {
        return false;
    }
    for (uint64_t i = 0; i < report->block_count; i++) {
        uint64_t block = report->blocks[i];
        if (block >= vote->block_count || vote->owner[block] != report->shard ||
            (i > 0 && block <= report->blocks[i - 1])) {
            return false;
        }
    }
    return true;
}

enum status vote_add(struct vote *vote, const struct vote_report *report) {
    if (report->shard >= vote->shard_count || report->round > vote->round) {
        return STATUS_MISMATCH;
    }
    if (report->round < vote->round || vote->has_reported[report->shard]) {
        return STATUS_STALE;
    }
    if (report->contributors == 0 ||
        (vote->reported > 0 && report->contributors != vote->contributors) ||
        !blocks_fit(vote, report)) {
        return STATUS_MISMATCH;
    }
    for (uint64_t i = 0; i < report->block_count; i++) {
        vote->sums_of_squares[report->blocks[i]] = report->sums_of_squares[i];
    }
    vote->contributors = report->contributors;
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
    double total = 0;
    for (uint64_t block = 0; block < vote->block_count; block++) {
        total += vote->sums_of_squares[block];
    }
    double norm = sqrt(total) / (double)vote->contributors;
    bool skip = vote->nonfinite || !isfinite(norm);
    *verdict = (struct vote_verdict){.round = vote->round,
                                     .skip = skip,
                                     .scale = skip ? 0 : vote_clip_factor(clip, norm),
                                     .norm = norm};
    vote->skipped += skip ? 1 : 0;
    vote->skipped_in_row = skip ? vote->skipped_in_row + 1 : 0;
    vote->round++;
    vote->reported = 0;
    vote->nonfinite = false;
    memset(vote->has_reported, 0, (size_t)vote->shard_count * sizeof(bool));
}
