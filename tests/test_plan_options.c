/* Proves what the options of a plan do: factors of rate and decay reach the blocks of their tensors
 * and freeze them, fragments are spread as a plain quadratic LPT written here spreads them, whole
 * matrices are one block; and that what is wrong is refused with the plan untouched. The rest of
 * the plan is test_plan.c's.
 */
#include "tests/plan_list.h"
#include "tests/test.h"

static void factors(void) {
    static const struct {
        const char *text, *name;
        double factor; /* negative: malformed */
    } table[] = {
        {NULL, "w", 1},
        {"", "w", 1},
        {"w=0", "w", 0},
        {"w=0", "v", 1},
        {"*.bias=0.5,h.*=2", "h.0.bias", 0.5}, /* the first that fits */
        {"*.bias=0.5,h.*=2", "h.0.weight", 2},
        {"*.bias=0.5,h.*=2", "wte", 1},
        {"h.[01].*=3", "h.1.weight", 3},
        {"h.[01].*=3", "h.2.weight", 1},
        {"a=b=2", "a=b", 2}, /* the last = parts them */
        {"w=1e-3", "w", 1e-3},
        {"w", "w", -1},
        {"=1", "w", -1},
        {"w=", "w", -1},
        {"w=x", "w", -1},
        {"w=1x", "w", -1},
        {"w=-1", "w", -1},
        {"w=inf", "w", -1},
        {"w=nan", "w", -1},
        {"w=1,", "w", -1},
        {",w=1", "w", -1},
        {"w=1,v=", "w", -1}, /* also behind one that fits */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        double factor = 77;
        enum status status = plan_factor(table[i].text, table[i].name, &factor);
        CHECK_INT(status, table[i].factor < 0 ? STATUS_INVALID : STATUS_OK);
        CHECK_NEAR(factor, table[i].factor < 0 ? 77 : table[i].factor, 0);
    }
}

/* Each block has the factors of its tensors: a decay only where the tensor decays, and no pack of
 * different ones. */
static void rates_and_decays(void) {
    static struct list list;
    struct plan plan;
    list.count = 0;
    list_add_transformer(&list, 3, 32, 300);
    CHECK_INT(plan_build(&plan, list.tensors, list.count,
                         &(struct plan_options){.shards = 2,
                                                .block_values = 500,
                                                .rates = "w?e.weight=0,*.bias=0.5",
                                                .decays = "h.1.*=3,*.bias=9"}),
              STATUS_OK);
    uint64_t frozen = 0;
    for (uint64_t i = 0; i < plan.block_count; i++) {
        const struct plan_block *block = &plan.blocks[i];
        for (uint64_t t = 0; t < block->tensor_count; t++) {
            const struct tensor *tensor = &plan.tensors[plan.pack_order[block->first_tensor + t]];
            bool bias = strstr(tensor->name, ".bias") != NULL;
            bool first =
                strcmp(tensor->name, "wte.weight") == 0 || strcmp(tensor->name, "wpe.weight") == 0;
            CHECK_NEAR(block->rate, first ? 0 : (bias ? 0.5 : 1), 0);
            double decay = strncmp(tensor->name, "h.1.", 4) == 0 ? 3 : 1;
            CHECK_NEAR(block->decay, tensor->decay ? decay : 0, 0);
        }
        CHECK_INT(block->fragment, block->rate > 0 ? 0 : PLAN_FROZEN);
        frozen += block->rate > 0 ? 0 : 1;
    }
    CHECK(frozen > 2);
    plan_free(&plan);
}

/* Fragments as one would spread them on a blackboard: the longest block that is left onto the
 * fragment with the least; frozen blocks are in none; shards do not depend on it. */
static void fragments_are_balanced(void) {
    static struct list list;
    list.count = 0;
    list_add_transformer(&list, 3, 32, 300);
    for (uint64_t count = 1; count <= 9; count += 2) {
        struct plan plan, plain;
        uint64_t loads[9] = {0};
        bool placed[512] = {false};
        struct plan_options options = {
            .shards = 3, .block_values = 700, .fragments = count, .rates = "wte.weight=0"};
        CHECK_INT(plan_build(&plan, list.tensors, list.count, &options), STATUS_OK);
        options.fragments = 0;
        CHECK_INT(plan_build(&plain, list.tensors, list.count, &options), STATUS_OK);
        CHECK_INT(plan.fragment_count, count);
        CHECK_INT(plain.fragment_count, 1);
        CHECK(plan.block_count < 512);
        for (uint64_t round = 0; round < plan.block_count; round++) {
            uint64_t longest = UINT64_MAX, least = 0;
            for (uint64_t b = 0; b < plan.block_count; b++) {
                if (!placed[b] && plan.blocks[b].rate > 0 &&
                    (longest == UINT64_MAX || plan.blocks[b].count > plan.blocks[longest].count))
                    longest = b;
            }
            if (longest == UINT64_MAX) break;
            for (uint64_t f = 1; f < count; f++)
                if (loads[f] < loads[least]) least = f;
            CHECK_INT(plan.blocks[longest].fragment, least);
            loads[least] += plan.blocks[longest].count;
            placed[longest] = true;
        }
        for (uint64_t b = 0; b < plan.block_count; b++) {
            CHECK_INT(plan.blocks[b].fragment == PLAN_FROZEN, !placed[b]);
            CHECK_INT(plan.blocks[b].shard, plain.blocks[b].shard);
            CHECK(list_blocks_equal(&plan.blocks[b], &plain.blocks[b]));
        }
        plan_free(&plan);
        plan_free(&plain);
    }
}

/* Whole: each matrix is one block, whatever the block size, where a frame can hold it. Hidden is a
 * whole matrix that is no embedding; vectors never are. */
static void whole_matrices(void) {
    static struct list list;
    list.count = 0;
    list_add_transformer(&list, 2, 32, 300);
    list_add(&list, "giant", 5000, 5000, true); /* 100 MB: no frame holds it */
    list.tensors[0].embedding = list.tensors[1].embedding = true;
    for (int whole = 0; whole < 2; whole++) {
        struct plan plan;
        uint64_t hidden = 0;
        CHECK_INT(plan_build(&plan, list.tensors, list.count,
                             &(struct plan_options){
                                 .shards = 2, .block_values = 4000, .whole = whole == 1}),
                  STATUS_OK);
        for (uint64_t i = 0; i < plan.block_count; i++) {
            const struct plan_block *block = &plan.blocks[i];
            const struct tensor *tensor = &plan.tensors[plan.pack_order[block->first_tensor]];
            bool all = tensor->dims > 1 && block->count == list_size(tensor);
            CHECK_INT(block->hidden, all && !tensor->embedding);
            hidden += block->hidden ? 1 : 0;
            if (tensor->dims > 1 && strcmp(tensor->name, "giant") != 0) {
                CHECK(whole == 0 || all);
            }
        }
        /* 32 x 96 is within 4000 values; 32 x 128 is not. */
        CHECK_INT(hidden, whole == 1 ? 4 : 2);
        plan_free(&plan);
    }
}

static void refuse_options(const struct list *list, const struct plan_options *options) {
    struct plan plan;
    memset(&plan, 0x5a, sizeof plan);
    CHECK_INT(plan_build(&plan, list->tensors, list->count, options), STATUS_INVALID);
    for (size_t i = 0; i < sizeof plan; i++)
        CHECK_INT(((const uint8_t *)&plan)[i], 0x5a);
}

static void wrong_options(void) {
    static struct list list;
    list.count = 0;
    list_add(&list, "w", 3, 10, true);
    list_add(&list, "b", 10, 0, false);
    const struct plan_options wrong[] = {
        {.shards = 1, .block_values = 10, .fragments = 5}, /* of four blocks */
        {.shards = 1, .block_values = 10, .fragments = 4, .rates = "b=0"},
        {.shards = 1, .block_values = 10, .rates = "*=0"},
        {.shards = 1, .block_values = 10, .rates = "w"},
        {.shards = 1, .block_values = 10, .decays = "w=-1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refuse_options(&list, &wrong[i]);
}

int main(void) {
    TEST_RUN(factors);
    TEST_RUN(rates_and_decays);
    TEST_RUN(fragments_are_balanced);
    TEST_RUN(whole_matrices);
    TEST_RUN(wrong_options);
    return 0;
}
