/* Proves the vote: one norm with the same bits for any number of shards, the clip factor of
 * PyTorch's clip_grad_norm_, one decision on a gradient that is not finite, and that what a shard
 * must not say changes nothing.
 *
 * The oracle of the norm is the sum over blocks in order of id, one block after the other, in
 * double; sums of squares are chosen so that another order gives other bits. Reports come in random
 * orders. That a refused report changes nothing is shown by comparing the whole state, bytes of its
 * arrays too.
 */
#include "base/memory.h"
#include "base/random.h"
#include "server/vote.h"
#include "tests/test.h"

#include <math.h>

enum { BLOCKS_MAX = 64 };

/* A plan of one matrix with `rows` rows, a block each. */
static void build(struct plan *plan, uint64_t rows, uint64_t shards) {
    const struct tensor tensor = {.name = "w", .dims = 2, .shape = {rows, 2}};
    CHECK_INT(
        plan_build(plan, &tensor, 1, &(struct plan_options){.shards = shards, .block_values = 2}),
        STATUS_OK);
    CHECK_INT(plan->block_count, rows);
}

/* What one shard says of a round, of sums [block_count] of all blocks. */
struct said {
    struct vote_report report;
    uint64_t blocks[BLOCKS_MAX];
    double sums[BLOCKS_MAX];
};

static void say(struct said *said, const struct plan *plan, uint64_t shard, uint64_t round,
                const double *sums) {
    *said =
        (struct said){.report = {.round = round, .shard = shard, .contributors = 3, .weight = 3}};
    uint64_t fragment = (round - 1) % plan->fragment_count;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        if (plan->blocks[id].shard == shard && plan->blocks[id].fragment == fragment) {
            said->blocks[said->report.block_count] = id;
            said->sums[said->report.block_count++] = sums[id];
            said->report.nonfinite = said->report.nonfinite || !isfinite(sums[id]);
        }
    }
    said->report.blocks = said->blocks;
    said->report.sums_of_squares = said->sums;
}

/* All shards that own blocks report, in a random order; the last one completes the round. */
static void run_round(struct vote *vote, const struct plan *plan, const double *sums,
                      struct random_stream *random, double clip, struct vote_verdict *verdict) {
    uint64_t order[BLOCKS_MAX];
    uint64_t voters = 0;
    static struct said said;
    for (uint64_t shard = 0; shard < plan->shard_count; shard++) {
        say(&said, plan, shard, vote->round, sums);
        if (said.report.block_count > 0) {
            order[voters++] = shard;
        }
    }
    for (uint64_t i = voters; i > 1; i--) {
        uint64_t other = random_below(random, i);
        uint64_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
    for (uint64_t i = 0; i < voters; i++) {
        say(&said, plan, order[i], vote->round, sums);
        CHECK_INT(vote_add(vote, &said.report), i + 1 < voters ? STATUS_AGAIN : STATUS_OK);
    }
    vote_decide(vote, clip, verdict);
}

static void test_any_shard_count(void) {
    int order_matters = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct random_stream random;
        double sums[23], total = 0, backwards = 0;
        random_open(&random, seed, RANDOM_SIMULATOR, 0);
        for (int i = 0; i < 23; i++) {
            sums[i] = ldexp((double)random_u64(&random), (int)random_below(&random, 10) - 64);
            total += sums[i];
        }
        for (int i = 22; i >= 0; i--) {
            backwards += sums[i];
        }
        order_matters += memcmp(&total, &backwards, sizeof total) != 0 ? 1 : 0;
        double norm = sqrt(total) / 3.0;
        static const uint64_t shard_counts[] = {1, 2, 3, 5, 22, 23, 24, 60};
        for (size_t i = 0; i < sizeof shard_counts / sizeof shard_counts[0]; i++) {
            struct plan plan;
            struct vote vote;
            struct vote_verdict verdict;
            build(&plan, 23, shard_counts[i]);
            vote_init(&vote, &plan);
            for (uint64_t round = 1; round <= 3; round++) {
                run_round(&vote, &plan, sums, &random, 0.5, &verdict);
                CHECK_INT(verdict.round, round);
                CHECK(!verdict.skip);
                CHECK(memcmp(&verdict.norm, &norm, sizeof norm) == 0);
                float scale = 0.5 / (norm + 1e-6) < 1 ? (float)(0.5 / (norm + 1e-6)) : 1.0F;
                CHECK(memcmp(&verdict.scale, &scale, sizeof scale) == 0);
            }
            vote_free(&vote);
            plan_free(&plan);
        }
    }
    CHECK(order_matters >= 25); /* or the test tells nothing */
}

/* By hand: torch.nn.utils.clip_grad_norm_ multiplies by min(1, max_norm / (norm + 1e-6)). */
static void test_clip_factor(void) {
    static const struct {
        double clip, norm;
        float expected;
    } table[] = {
        {0, 0, 1},
        {0, 1e30, 1},
        {1, 0, 1},
        {1, 0.5, 1},
        {1, 1, 1 / (1 + 1e-6F)},
        {1, 2, 0.5F},
        {1, 4, 0.25F},
        {0.1, 5, 0.02F},
        {3, 2.9, 1},
        {1e-9, 1, 1e-9F},
        {1, 1e300, 0},
        /* Small norms show the 1e-6: 1e-6 / (1e-6 + 1e-6) is a half, not 1. */
        {1e-6, 1e-6, 0.5F},
        {1e-6, 0, 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        float factor = vote_clip_factor(table[i].clip, table[i].norm);
        CHECK_NEAR(factor, table[i].expected, (double)table[i].expected * 1e-6);
    }
    /* A clipped gradient's norm is the limit, and an unclipped one's its own. */
    for (int i = -10; i < 30; i++) {
        double norm = pow(1.7, i);
        double clipped = norm * (double)vote_clip_factor(1, norm);
        CHECK_NEAR(clipped, norm < 1 ? norm : 1, 2e-6);
    }
}

/* With fragments each round is of some blocks and some shards: others have no say, and leave
 * nothing in the norm. Frozen blocks are in no round. */
static void test_fragments(void) {
    const struct tensor tensors[3] = {{.name = "w", .dims = 2, .shape = {9, 2}},
                                      {.name = "e", .dims = 2, .shape = {4, 2}},
                                      {.name = "v", .dims = 2, .shape = {5, 2}}};
    struct random_stream random;
    random_open(&random, 8, RANDOM_SIMULATOR, 0);
    for (uint64_t shards = 1; shards <= 20; shards += 4) {
        struct plan plan;
        struct vote vote;
        struct vote_verdict verdict;
        double sums[18];
        CHECK_INT(
            plan_build(&plan, tensors, 3,
                       &(struct plan_options){
                           .shards = shards, .block_values = 2, .fragments = 5, .rates = "e=0"}),
            STATUS_OK);
        CHECK_INT(plan.block_count, 18);
        vote_init(&vote, &plan);
        for (uint64_t round = 1; round <= 12; round++) {
            double total = 0;
            for (uint64_t id = 0; id < 18; id++) {
                sums[id] = ldexp((double)random_u64(&random), -60);
                total += plan.blocks[id].fragment == (round - 1) % 5 ? sums[id] : 0;
            }
            run_round(&vote, &plan, sums, &random, 0, &verdict);
            CHECK_INT(verdict.round, round);
            double norm = sqrt(total) / 3;
            CHECK(memcmp(&verdict.norm, &norm, sizeof norm) == 0);
        }
        vote_free(&vote);
        plan_free(&plan);
    }
}

/* The mean is by weight. A round without weight is skipped, and is no step to divergence. */
static void test_weights(void) {
    static const double weights[] = {0.25, 2.5, 0, 1};
    struct plan plan;
    struct vote vote;
    struct vote_verdict verdict;
    struct said said;
    const double sums[2] = {9, 16};
    build(&plan, 2, 1);
    vote_init(&vote, &plan);
    for (uint64_t i = 0; i < 4; i++) {
        say(&said, &plan, 0, i + 1, sums);
        said.report.weight = weights[i];
        CHECK_INT(vote_add(&vote, &said.report), STATUS_OK);
        vote_decide(&vote, 0, &verdict);
        CHECK_INT(verdict.skip, i == 2);
        CHECK(!verdict.nonfinite);
        CHECK_NEAR(verdict.norm, i == 2 ? 0 : 5 / weights[i], 1e-15);
        CHECK_INT(vote.skipped_in_row, 0);
    }
    CHECK_INT(vote.skipped, 1);
    vote_free(&vote);
    plan_free(&plan);
}

/* The norm is that of the mean: of the sum divided by the contributors. */
static void test_mean(void) {
    struct plan plan;
    struct vote vote;
    struct vote_verdict verdict;
    struct said said;
    const double sums[2] = {9, 16}; /* the sum's norm is 5 */
    build(&plan, 2, 1);
    vote_init(&vote, &plan);
    static const uint64_t contributors[] = {1, 2, 5, 1000};
    for (uint64_t i = 0; i < 4; i++) {
        say(&said, &plan, 0, i + 1, sums);
        said.report.contributors = contributors[i];
        said.report.weight = (double)contributors[i];
        CHECK_INT(vote_add(&vote, &said.report), STATUS_OK);
        vote_decide(&vote, 2, &verdict);
        double norm = 5.0 / (double)contributors[i];
        CHECK_NEAR(verdict.norm, norm, 1e-15);
        CHECK_NEAR(verdict.scale, norm > 2 ? 2 / norm : 1, 1e-6);
    }
    vote_free(&vote);
    plan_free(&plan);
}

static void test_not_finite(void) {
    static const double bad[] = {NAN, INFINITY};
    struct plan plan;
    struct vote vote;
    struct vote_verdict verdict;
    struct random_stream random;
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    build(&plan, 9, 4);
    vote_init(&vote, &plan);
    double sums[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    uint64_t skipped = 0;
    for (int i = 0; i < 9; i++) {
        for (int k = 0; k < 2; k++) {
            double kept = sums[i];
            sums[i] = bad[k];
            run_round(&vote, &plan, sums, &random, 1, &verdict);
            sums[i] = kept;
            CHECK(verdict.skip && verdict.scale <= 0);
            CHECK_INT(vote.skipped_in_row, ++skipped);
            CHECK_INT(vote.skipped, skipped);
        }
    }
    /* Sums that are finite one by one but not together. */
    sums[3] = sums[7] = 1.7e308;
    run_round(&vote, &plan, sums, &random, 1, &verdict);
    CHECK(verdict.skip);
    CHECK_INT(vote.skipped_in_row, 19);
    sums[3] = sums[7] = 4;
    run_round(&vote, &plan, sums, &random, 1, &verdict);
    CHECK(!verdict.skip);
    CHECK_INT(vote.skipped_in_row, 0);
    CHECK_INT(vote.skipped, 19);
    vote_free(&vote);
    /* The flag alone, with sums that look sound. */
    struct said said;
    vote_init(&vote, &plan);
    for (uint64_t shard = 0; shard < 4; shard++) {
        say(&said, &plan, shard, 1, sums);
        said.report.nonfinite = shard == 1;
        CHECK_INT(vote_add(&vote, &said.report), shard < 3 ? STATUS_AGAIN : STATUS_OK);
    }
    vote_decide(&vote, 1, &verdict);
    CHECK(verdict.skip);
    vote_free(&vote);
    plan_free(&plan);
}

/* The vote's state as bytes, to compare. */
struct state {
    struct vote vote;
    bool has_reported[8];
    double sums[BLOCKS_MAX];
};

static void take_state(struct state *state, const struct vote *vote) {
    memset(state, 0, sizeof *state);
    memcpy(&state->vote, vote, sizeof *vote);
    memcpy(state->has_reported, vote->has_reported, vote->shard_count * sizeof(bool));
    memcpy(state->sums, vote->sums_of_squares, vote->block_count * sizeof(double));
}

static void refuse(struct vote *vote, const struct said *said, enum status expected) {
    struct state before, after;
    take_state(&before, vote);
    CHECK_INT(vote_add(vote, &said->report), expected);
    take_state(&after, vote);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
}

/* What does not fit the round: each refused without a trace, before and after others reported. */
static void refuse_wrong(struct vote *vote, const struct plan *plan, const double *sums) {
    static struct said said;
    say(&said, plan, 2, vote->round + 1, sums); /* a later round */
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, UINT64_MAX, sums);
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, vote->round - 1, sums); /* an earlier one */
    refuse(vote, &said, STATUS_STALE);
    say(&said, plan, 2, vote->round, sums); /* no such shard */
    said.report.shard = plan->shard_count;
    refuse(vote, &said, STATUS_MISMATCH);
    said.report.shard = UINT64_MAX;
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, vote->round, sums); /* no such block */
    said.blocks[said.report.block_count - 1] = plan->block_count;
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, vote->round, sums); /* another shard's block */
    said.blocks[0] = plan->blocks[0].shard == 2 ? 1 : 0;
    CHECK(plan->blocks[said.blocks[0]].shard != 2);
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, vote->round, sums); /* a block is missing */
    said.report.block_count--;
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, vote->round, sums); /* a block twice, another not */
    said.blocks[1] = said.blocks[0];
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, vote->round, sums); /* nobody's gradient */
    said.report.contributors = 0;
    refuse(vote, &said, STATUS_MISMATCH);
    say(&said, plan, 2, vote->round, sums); /* weights that there cannot be */
    said.report.weight = -1;
    refuse(vote, &said, STATUS_MISMATCH);
    said.report.weight = (double)NAN;
    refuse(vote, &said, STATUS_MISMATCH);
    said.report.weight = INFINITY;
    refuse(vote, &said, STATUS_MISMATCH);
}

static void test_wrong_reports(void) {
    struct plan plan;
    struct vote vote;
    struct vote_verdict verdict;
    static struct said said;
    const double sums[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    build(&plan, 12, 3);
    vote_init(&vote, &plan);
    for (uint64_t round = 1; round <= 3; round++) {
        refuse_wrong(&vote, &plan, sums);
        say(&said, &plan, 0, round, sums);
        CHECK_INT(vote_add(&vote, &said.report), STATUS_AGAIN);
        refuse_wrong(&vote, &plan, sums);
        refuse(&vote, &said, STATUS_STALE); /* the same again */
        said.sums[0] = 99;
        refuse(&vote, &said, STATUS_STALE); /* or another of the same shard */
        say(&said, &plan, 1, round, sums);
        said.report.contributors = 4; /* the first one said 3 */
        refuse(&vote, &said, STATUS_MISMATCH);
        said.report.contributors = 3;
        said.report.weight = 2.9999999;
        refuse(&vote, &said, STATUS_MISMATCH);
        say(&said, &plan, 1, round, sums);
        CHECK_INT(vote_add(&vote, &said.report), STATUS_AGAIN);
        refuse_wrong(&vote, &plan, sums);
        say(&said, &plan, 2, round, sums);
        CHECK_INT(vote_add(&vote, &said.report), STATUS_OK);
        vote_decide(&vote, 0, &verdict);
        CHECK_INT(verdict.round, round);
        CHECK_NEAR(verdict.norm, sqrt(12.0) / 3, 1e-15);
        CHECK_NEAR(verdict.scale, 1, 0);
        say(&said, &plan, 1, round, sums);
        refuse(&vote, &said, STATUS_STALE); /* of the round that is closed */
    }
    vote_free(&vote);
    plan_free(&plan);
}

/* A shard without blocks has no say: it must not complete a round in another's place. */
static void test_shard_that_owns_nothing(void) {
    struct plan plan;
    struct vote vote;
    struct said said;
    const double sums[2] = {1, 1};
    build(&plan, 2, 4);
    vote_init(&vote, &plan);
    CHECK_INT(vote.voters, 2);
    for (uint64_t shard = 0; shard < 4; shard++) {
        say(&said, &plan, shard, 1, sums);
        if (said.report.block_count == 0) {
            refuse(&vote, &said, STATUS_MISMATCH);
        }
    }
    vote_free(&vote);
    plan_free(&plan);
}

int main(void) {
    TEST_RUN(test_any_shard_count);
    TEST_RUN(test_clip_factor);
    TEST_RUN(test_mean);
    TEST_RUN(test_fragments);
    TEST_RUN(test_weights);
    TEST_RUN(test_not_finite);
    TEST_RUN(test_wrong_reports);
    TEST_RUN(test_shard_that_owns_nothing);
    return 0;
}
