/* Proves that every block is ready exactly once in a pass, at the mark of the last of its tensors
 * and not before, whatever the order of the marks.
 *
 * The oracle is the definition: after each mark, the blocks all of whose tensors are marked, found
 * by looking at the flat vector's offsets alone, less those that were ready before. Plans with
 * matrices over several blocks, packs, and single-tensor blocks are marked in random orders, in
 * reverse (backward's own), pass after pass over the same bucket.
 *
 * Also of how a node's members share these blocks: each has one owner, no member's values exceed
 * another's by more than the longest block; and the pieces of a tensor fill it, each within one
 * block, of the block's owner. What waits for all members' parts ends also when one is missing.
 */
#include "base/memory.h"
#include "base/random.h"
#include "tests/test.h"
#include "worker/bucket.h"
#include "worker/model_team.h"
#include "worker/owner.h"

enum { TENSORS = 9 };

static struct tensor tensor_of(const char *name, uint64_t rows, uint64_t cols, bool decay) {
    struct tensor tensor = {.dims = rows > 0 ? 2 : 1, .decay = decay};
    (void)snprintf(tensor.name, sizeof tensor.name, "%s", name);
    tensor.shape[0] = rows > 0 ? rows : cols;
    tensor.shape[1] = rows > 0 ? cols : 0;
    return tensor;
}

static uint64_t build(struct plan *plan, uint64_t block_values) {
    const struct tensor tensors[TENSORS] = {
        tensor_of("embed", 12, 8, true),  tensor_of("norm1", 0, 8, false),
        tensor_of("norm1b", 0, 8, false), tensor_of("attend", 8, 24, true),
        tensor_of("bias", 0, 24, false),  tensor_of("gate", 0, 8, true),
        tensor_of("norm2", 0, 8, false),  tensor_of("up", 3, 16, true),
        tensor_of("last", 0, 5, false),
    };
    CHECK_INT(plan_build(plan, tensors, TENSORS,
                         &(struct plan_options){.shards = 3, .block_values = block_values}),
              STATUS_OK);
    return plan->block_count;
}

/* Does the tensor hold a value of the block? By where they lie in the flat vector. */
static bool overlaps(const struct plan *plan, uint64_t tensor, uint64_t block) {
    uint64_t count = plan_values(plan, tensor);
    uint64_t start = plan->offsets[tensor];
    const struct plan_block *planned = &plan->blocks[block];
    return start < planned->offset + planned->count && planned->offset < start + count;
}

static bool complete(const struct plan *plan, uint64_t block, const bool *marked) {
    for (uint64_t tensor = 0; tensor < plan->tensor_count; tensor++) {
        if (overlaps(plan, tensor, block) && !marked[tensor]) {
            return false;
        }
    }
    return true;
}

/* Marks the tensors in this order and holds each answer against the definition. */
static void check_pass(struct bucket *bucket, const struct plan *plan, const uint64_t *order) {
    bool marked[TENSORS] = {false};
    bool *was_ready = memory_zeroed(plan->block_count, sizeof(bool));
    uint64_t *ready = memory_zeroed(bucket_most(bucket), sizeof(uint64_t));
    uint64_t total = 0;
    for (uint64_t i = 0; i < TENSORS; i++) {
        uint64_t count = bucket_mark(bucket, order[i], ready);
        marked[order[i]] = true;
        CHECK(count <= bucket_most(bucket));
        for (uint64_t k = 0; k < count; k++) {
            CHECK(ready[k] < plan->block_count && !was_ready[ready[k]]);
            CHECK(complete(plan, ready[k], marked));
            was_ready[ready[k]] = true;
        }
        for (uint64_t block = 0; block < plan->block_count; block++) {
            CHECK_INT(was_ready[block], complete(plan, block, marked));
        }
        total += count;
    }
    CHECK_INT(total, plan->block_count);
    free(ready);
    free(was_ready);
}

static void test_orders(void) {
    /* One value a block, some, and all of a tensor: from all slices to packs and whole matrices. */
    static const uint64_t sizes[] = {1, 8, 16, 40, 64, 100, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct plan plan;
        struct bucket bucket;
        struct random_stream random;
        uint64_t order[TENSORS];
        (void)build(&plan, sizes[s]);
        bucket_init(&bucket, &plan);
        random_open(&random, 5, RANDOM_SIMULATOR, s);
        for (uint64_t i = 0; i < TENSORS; i++) {
            order[i] = TENSORS - 1 - i;
        }
        for (int pass = 0; pass < 200; pass++) {
            check_pass(&bucket, &plan, order);
            bucket_reset(&bucket);
            for (uint64_t i = TENSORS - 1; i > 0; i--) {
                uint64_t other = random_below(&random, i + 1);
                uint64_t kept = order[i];
                order[i] = order[other];
                order[other] = kept;
            }
        }
        bucket_free(&bucket);
        plan_free(&plan);
    }
}

/* A pass that was broken off leaves nothing behind. */
static void test_reset(void) {
    struct plan plan;
    struct bucket bucket;
    uint64_t ready[64], order[TENSORS];
    (void)build(&plan, 40);
    bucket_init(&bucket, &plan);
    for (uint64_t i = 0; i < TENSORS; i++) {
        order[i] = i;
    }
    for (uint64_t broken = 0; broken <= TENSORS; broken++) {
        for (uint64_t i = 0; i < broken; i++) {
            (void)bucket_mark(&bucket, order[i], ready);
        }
        bucket_reset(&bucket);
        check_pass(&bucket, &plan, order);
        bucket_reset(&bucket);
    }
    bucket_free(&bucket);
    plan_free(&plan);
}

static void check_pieces(const struct model_team *team, const struct plan *plan, uint64_t tensor) {
    const struct tensor *shape = &plan->tensors[tensor];
    const struct team_piece *pieces;
    uint64_t count = team_pieces(team, tensor, &pieces), at = plan->offsets[tensor];
    CHECK(count >= 1 && count <= team_pieces_most(team));
    for (uint64_t i = 0; i < count; i++) {
        CHECK_INT(pieces[i].at, at);
        for (uint64_t block = 0; block < plan->block_count; block++) {
            const struct plan_block *planned = &plan->blocks[block];
            if (at < planned->offset || at >= planned->offset + planned->count) continue;
            CHECK(at + pieces[i].count <= planned->offset + planned->count);
            CHECK_INT(pieces[i].owner, team_owner(team, block));
        }
        at += pieces[i].count;
    }
    CHECK_INT(at - plan->offsets[tensor],
              shape->shape[0] * (shape->dims == 2 ? shape->shape[1] : 1));
}

static void check_owners(uint64_t block_values, int members) {
    struct plan plan;
    struct group group = {.count = members};
    uint64_t values[GROUP_MAX] = {0};
    (void)build(&plan, block_values);
    struct model_team *team = team_open(&group, &plan, 20);
    for (uint64_t block = 0; block < plan.block_count; block++) {
        int owner = team_owner(team, block);
        CHECK(owner >= 0 && owner < members);
        values[owner] += plan.blocks[block].count;
    }
    for (int i = 0; i < members * members; i++)
        CHECK(values[i / members] <= values[i % members] + plan.largest_block);
    for (uint64_t tensor = 0; tensor < plan.tensor_count; tensor++)
        check_pieces(team, &plan, tensor);
    team_close(team);
    plan_free(&plan);
}

static void test_owners(void) {
    static const uint64_t sizes[] = {1, 8, 40, 100, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int members = 1; members <= 5; members++)
            check_owners(sizes[s], members);
    }
}

/* Of three members two have done their part: the wait for the third ends by time, or by failure. */
static void test_parts(void) {
    struct plan plan;
    struct group group = {.count = 3};
    (void)build(&plan, 40);
    struct model_team *team = team_open(&group, &plan, 20);
    for (int pass = 0; pass < 2; pass++) {
        team_begin(team);
        CHECK_INT(team_parts(team, 2), STATUS_AGAIN);
        team_part(team, 2);
        team_part(team, 2);
        CHECK_INT(team_wait_parts(team, 2), STATUS_TIMEOUT);
        team_fail(team);
        CHECK_INT(team_wait_parts(team, 2), STATUS_PEER_LOST);
        team_part(team, 2);
        CHECK_INT(team_wait_parts(team, 2), STATUS_OK);
        CHECK_INT(team_parts(team, 1), STATUS_PEER_LOST);
    }
    team_close(team);
    plan_free(&plan);
}

static void test_shapes(void) {
    struct plan plan;
    struct bucket bucket;
    uint64_t ready[64];
    /* At 40 values: embed has 5 rows a block, 3 blocks; attend one row, 8; up two rows, 2. The
     * packs: norm1 + norm1b + bias (40), gate alone (decay), norm2 + last (13). */
    CHECK_INT(build(&plan, 40), 3 + 8 + 2 + 3);
    bucket_init(&bucket, &plan);
    CHECK_INT(bucket_most(&bucket), 8);
    CHECK_INT(bucket_mark(&bucket, 0, ready), 3);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_INT(ready[i], i);
    }
    CHECK_INT(bucket_mark(&bucket, 1, ready), 0);
    CHECK_INT(bucket_mark(&bucket, 4, ready), 0);
    CHECK_INT(bucket_mark(&bucket, 2, ready), 1);
    CHECK_INT(plan.blocks[ready[0]].count, 40);
    CHECK_INT(bucket_mark(&bucket, 8, ready), 0);
    CHECK_INT(bucket_mark(&bucket, 5, ready), 1);
    CHECK_INT(bucket_mark(&bucket, 6, ready), 1);
    CHECK_INT(plan.blocks[ready[0]].count, 13);
    CHECK_INT(bucket_mark(&bucket, 7, ready), 2);
    CHECK_INT(bucket_mark(&bucket, 3, ready), 8);
    bucket_free(&bucket);
    plan_free(&plan);
}

int main(void) {
    TEST_RUN(test_orders);
    TEST_RUN(test_reset);
    TEST_RUN(test_shapes);
    TEST_RUN(test_owners);
    TEST_RUN(test_parts);
    return 0;
}
