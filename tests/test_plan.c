/* Proves the plan: blocks cover the flat vector without a hole and obey every limit; they do not
 * depend on the shard count; placement is that of a plain quadratic LPT written here, and has LPT's
 * property on large plans; the digest is a golden number and changes with anything that goes into
 * it; sizes are 64-bit, and each malformed list is refused with the plan untouched. What options
 * say of tensors is test_plan_options.c's.
 */
#include "base/log.h"
#include "base/random.h"
#include "proto/frame.h"
#include "proto/plan.h"
#include "tests/plan_list.h"
#include "tests/test.h"

#include <inttypes.h>
#include <stdlib.h>

/* From an implementation of the plan and its digest in another language. */
#define GOLDEN_DIGEST           UINT64_C(0xb30b95906ff77e3f)
#define GOLDEN_FRAGMENTS_DIGEST UINT64_C(0x6a9a2684cd985584) /* four of them */
#define GOLDEN_TENSOR_DIGEST    UINT64_C(0x5b7f47e55c1804eb)

static void build(struct plan *plan, const struct list *list, uint64_t shards, uint64_t values) {
    CHECK_INT(plan_build(plan, list->tensors, list->count,
                         &(struct plan_options){.shards = shards, .block_values = values}),
              STATUS_OK);
}

static void check_slice(const struct plan *plan, const struct plan_block *block,
                        uint64_t block_values) {
    uint64_t index = plan->pack_order[block->first_tensor];
    const struct tensor *tensor = &plan->tensors[index];
    CHECK_INT(block->tensor_count, 1);
    CHECK_INT(block->cols, list_size(tensor) / tensor->shape[0]);
    CHECK(block->decay == tensor->decay);
    CHECK(block->offset >= plan->offsets[index]);
    CHECK((block->offset - plan->offsets[index]) % block->cols == 0);
    CHECK(block->offset + block->count <= plan->offsets[index] + list_size(tensor));
    CHECK(block->count <= block_values || block->rows == 1);
    /* No smaller than need be: all but a matrix's last have no room for another row. */
    if (block->offset + block->count < plan->offsets[index] + list_size(tensor))
        CHECK(block->count + block->cols > block_values);
}

static void check_pack(const struct plan *plan, const struct plan_block *block,
                       uint64_t block_values) {
    uint64_t values = 0;
    uint64_t end = block->first_tensor + block->tensor_count;
    CHECK_INT(block->rows, 1);
    CHECK(block->tensor_count >= 1 && end <= plan->tensor_count);
    for (uint64_t i = block->first_tensor; i < end; i++) {
        const struct tensor *tensor = &plan->tensors[plan->pack_order[i]];
        CHECK_INT(tensor->dims, 1);
        CHECK(tensor->decay == block->decay);
        CHECK_INT(plan->offsets[plan->pack_order[i]], block->offset + values);
        values += tensor->shape[0];
    }
    CHECK_INT(values, block->count);
    CHECK(values <= block_values || block->tensor_count == 1);
    /* The next vector has no room here, or another flag. */
    if (end < plan->tensor_count) {
        const struct tensor *next = &plan->tensors[plan->pack_order[end]];
        CHECK(next->decay != block->decay || values + next->shape[0] > block_values);
    }
}

/* Everything that plan.h promises of the blocks. */
static void check_blocks(const struct plan *plan, uint64_t block_values) {
    uint64_t offset = 0, largest = 0, total = 0;
    for (uint64_t i = 0; i < plan->tensor_count; i++)
        total += list_size(&plan->tensors[i]);
    CHECK_INT(plan->value_count, total);
    for (uint64_t i = 0; i < plan->block_count; i++) {
        const struct plan_block *block = &plan->blocks[i];
        CHECK_INT(block->id, i);
        CHECK_INT(block->offset, offset);
        CHECK(block->count >= 1 && block->count == block->rows * block->cols);
        CHECK(block->count * 4 <= FRAME_PAYLOAD_MAX);
        CHECK(block->shard < plan->shard_count);
        if (plan->tensors[plan->pack_order[block->first_tensor]].dims == 1) {
            check_pack(plan, block, block_values);
        } else {
            check_slice(plan, block, block_values);
        }
        offset += block->count;
        if (block->count > largest) largest = block->count;
    }
    CHECK_INT(offset, plan->value_count);
    CHECK_INT(largest, plan->largest_block);
}

/* Matrices in the model's order first, then vectors in the model's order. */
static void check_order(const struct plan *plan) {
    uint64_t offset = 0;
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        uint64_t index = plan->pack_order[i];
        CHECK(index < plan->tensor_count);
        CHECK_INT(plan->offsets[index], offset);
        offset += list_size(&plan->tensors[index]);
        if (i == 0) continue;
        uint64_t before = plan->pack_order[i - 1];
        bool vector_before = plan->tensors[before].dims == 1;
        bool vector = plan->tensors[index].dims == 1;
        CHECK(vector_before ? vector && before < index : vector || before < index);
    }
}

static void blocks_cover_the_vector(void) {
    static const uint64_t sizes[] = {1, 64, 1000, 4096, 262144, FRAME_PAYLOAD_MAX / 4};
    static struct list list;
    list.count = 0;
    list_add_transformer(&list, 3, 48, 257);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct plan plan;
        build(&plan, &list, 3, sizes[i]);
        check_blocks(&plan, sizes[i]);
        check_order(&plan);
        CHECK(memcmp(plan.tensors, list.tensors, list.count * sizeof list.tensors[0]) == 0);
        plan_free(&plan);
        CHECK(plan.blocks == NULL && plan.tensors == NULL);
    }
}

static void known_blocks(void) {
    static struct list list;
    struct plan plan;
    list.count = 0;
    list_add(&list, "bias", 10, 0, false);
    list_add(&list, "matrix", 5, 30, true);
    list_add(&list, "wide", 2, 101, true);
    build(&plan, &list, 2, 100);
    /* matrix: 3 rows of 30, then 2; wide: a row each; bias: a pack. */
    static const uint64_t rows[] = {3, 2, 1, 1, 1}, cols[] = {30, 30, 101, 101, 10};
    CHECK_INT(plan.block_count, 5);
    for (size_t i = 0; i < 5; i++) {
        CHECK_INT(plan.blocks[i].rows, rows[i]);
        CHECK_INT(plan.blocks[i].cols, cols[i]);
    }
    CHECK_INT(plan.offsets[0], 352);
    CHECK_INT(plan.offsets[1], 0);
    CHECK_INT(plan.offsets[2], 150);
    CHECK(plan.blocks[0].decay == 1 && plan.blocks[4].decay == 0);
    /* 101 -> 0, 101 -> 1, 90 -> 0, 60 -> 1, 10 -> 1. */
    static const uint64_t shards[] = {0, 1, 0, 1, 1};
    for (size_t i = 0; i < 5; i++)
        CHECK_INT(plan.blocks[i].shard, shards[i]);
    CHECK_NEAR(plan_balance(&plan), 191.0 / 181.0, 1e-12);
    plan_free(&plan);
}

static void packs(void) {
    static struct list list;
    struct plan plan;
    list.count = 0;
    list_add(&list, "a", 40, 0, false);
    list_add(&list, "b", 60, 0, false); /* fills the pack to the brim */
    list_add(&list, "c", 1, 0, false);
    list_add(&list, "d", 5, 0, true);    /* another flag */
    list_add(&list, "e", 5, 0, false);   /* and back: packs keep the model's order */
    list_add(&list, "f", 500, 0, false); /* longer than a block: by itself */
    list_add(&list, "g", 1, 0, false);
    build(&plan, &list, 1, 100);
    static const uint64_t counts[] = {100, 1, 5, 5, 500, 1}, tensors[] = {2, 1, 1, 1, 1, 1};
    CHECK_INT(plan.block_count, 6);
    for (size_t i = 0; i < 6; i++) {
        CHECK_INT(plan.blocks[i].count, counts[i]);
        CHECK_INT(plan.blocks[i].tensor_count, tensors[i]);
    }
    check_blocks(&plan, 100);
    plan_free(&plan);
}

/* A tensor of three dimensions is a matrix of shape[0] rows. */
static void more_dimensions(void) {
    static struct list list;
    struct plan plan;
    list.count = 0;
    list_add(&list, "experts", 8, 3, true);
    list.tensors[0].dims = 4;
    list.tensors[0].shape[2] = 5;
    list.tensors[0].shape[3] = 7;
    build(&plan, &list, 1, 300);
    CHECK_INT(plan.value_count, 840);
    CHECK_INT(plan.blocks[0].cols, 105);
    CHECK_INT(plan.blocks[0].rows, 2);
    CHECK_INT(plan.block_count, 4);
    check_blocks(&plan, 300);
    plan_free(&plan);
}

static void blocks_do_not_depend_on_shards(void) {
    static const uint64_t shard_counts[] = {2, 7, 1000, 65536};
    static struct list list;
    struct plan one;
    list.count = 0;
    list_add_transformer(&list, 2, 32, 300);
    build(&one, &list, 1, 1024);
    for (size_t i = 0; i < sizeof shard_counts / sizeof shard_counts[0]; i++) {
        struct plan plan;
        build(&plan, &list, shard_counts[i], 1024);
        CHECK_INT(plan.block_count, one.block_count);
        for (uint64_t b = 0; b < one.block_count; b++)
            CHECK(list_blocks_equal(&plan.blocks[b], &one.blocks[b]));
        CHECK(plan.digest != one.digest);
        plan_free(&plan);
    }
    plan_free(&one);
}

/* LPT as one would write it on a blackboard: the longest block that is left, onto the shard with
 * the least, by searching both. */
static void check_placement(const struct plan *plan) {
    bool *placed = calloc(plan->block_count, sizeof *placed);
    uint64_t *loads = calloc(plan->shard_count, sizeof *loads);
    CHECK(placed != NULL && loads != NULL);
    for (uint64_t round = 0; round < plan->block_count; round++) {
        uint64_t longest = UINT64_MAX, least = 0;
        for (uint64_t b = 0; b < plan->block_count; b++) {
            if (placed[b]) continue;
            if (longest == UINT64_MAX || plan->blocks[b].count > plan->blocks[longest].count)
                longest = b;
        }
        for (uint64_t s = 1; s < plan->shard_count; s++)
            if (loads[s] < loads[least]) least = s;
        CHECK_INT(plan->blocks[longest].shard, least);
        loads[least] += plan->blocks[longest].count;
        placed[longest] = true;
    }
    free(placed);
    free(loads);
}

static void placement_is_lpt(void) {
    static const uint64_t shard_counts[] = {1, 2, 3, 5, 16, 61};
    static struct list list;
    struct random_stream stream;
    random_open(&stream, 7, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < sizeof shard_counts / sizeof shard_counts[0]; i++) {
        struct plan plan;
        list.count = 0;
        for (int t = 0; t < 60; t++) {
            char name[16];
            snprintf(name, sizeof name, "t%d", t);
            list_add(&list, name, 1 + random_below(&stream, 400), random_below(&stream, 12),
                     t % 3 == 0);
        }
        build(&plan, &list, shard_counts[i], 256);
        check_blocks(&plan, 256);
        check_placement(&plan);
        plan_free(&plan);
    }
}

/* A shard without its smallest block was the least loaded when it got that: it is no fuller than
 * any shard is in the end. */
static void lpt_property(void) {
    enum { SHARDS = 13 };
    static struct list list;
    struct plan plan;
    uint64_t loads[SHARDS] = {0}, smallest[SHARDS];
    list.count = 0;
    list_add_transformer(&list, 100, 96, 5000);
    build(&plan, &list, SHARDS, 1000);
    CHECK(plan.block_count > 5000);
    memset(smallest, 0xff, sizeof smallest);
    for (uint64_t i = 0; i < plan.block_count; i++) {
        const struct plan_block *block = &plan.blocks[i];
        loads[block->shard] += block->count;
        if (block->count < smallest[block->shard]) smallest[block->shard] = block->count;
    }
    uint64_t most = 0;
    for (int s = 0; s < SHARDS; s++) {
        for (int other = 0; other < SHARDS; other++)
            CHECK(loads[s] - smallest[s] <= loads[other]);
        if (loads[s] > most) most = loads[s];
    }
    CHECK_NEAR(plan_balance(&plan), (double)most * SHARDS / (double)plan.value_count, 1e-12);
    CHECK(plan_balance(&plan) >= 1.0 && plan_balance(&plan) < 1.01);
    plan_free(&plan);
}

static void more_shards_than_blocks(void) {
    static struct list list;
    struct plan plan;
    list.count = 0;
    list_add(&list, "w", 3, 10, true);
    build(&plan, &list, 5, 10);
    CHECK_INT(plan.block_count, 3);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_INT(plan.blocks[i].shard, i);
    CHECK_NEAR(plan_balance(&plan), 5.0 / 3.0, 1e-12);
    plan_free(&plan);
}

static uint64_t digest_of(const struct list *list, uint64_t shards, uint64_t values) {
    struct plan plan;
    build(&plan, list, shards, values);
    uint64_t digest = plan.digest;
    plan_free(&plan);
    return digest;
}

static void digests(void) {
    static struct list base, list;
    base.count = 0;
    list_add_transformer(&base, 2, 32, 300);
    uint64_t digest = digest_of(&base, 3, 1000);
    uint64_t tensor_digest = plan_tensor_digest(base.tensors, base.count);
    CHECK_INT(digest, GOLDEN_DIGEST);
    CHECK_INT(tensor_digest, GOLDEN_TENSOR_DIGEST);
    CHECK(digest_of(&base, 3, 1000) == digest);
    struct plan fragments;
    CHECK_INT(plan_build(&fragments, base.tensors, base.count,
                         &(struct plan_options){.shards = 3, .block_values = 1000, .fragments = 4}),
              STATUS_OK);
    CHECK_INT(fragments.digest, GOLDEN_FRAGMENTS_DIGEST);
    plan_free(&fragments);
    CHECK(digest_of(&base, 4, 1000) != digest);
    CHECK(digest_of(&base, 3, 2000) != digest);

    for (int change = 0; change < 7; change++) {
        list = base;
        struct tensor *tensor = &list.tensors[4];
        struct tensor other = list.tensors[3];
        switch (change) {
        case 0:
            tensor->name[0] = 'H';
            break;
        case 1:
            tensor->shape[0]++;
            break;
        case 2:
            tensor->decay = !tensor->decay;
            break;
        case 3: /* as many values, in two dimensions */
            tensor->dims = 2;
            tensor->shape[1] = 1;
            break;
        case 4:
            tensor->embedding = true;
            break;
        case 5: /* another order */
            list.tensors[3] = *tensor;
            *tensor = other;
            break;
        default: /* one tensor less */
            list.count--;
        }
        CHECK(plan_tensor_digest(list.tensors, list.count) != tensor_digest);
        CHECK(digest_of(&list, 3, 1000) != digest);
    }

    /* What is behind a name's end, or beyond the dimensions, says nothing. */
    list = base;
    memset(list.tensors[2].name + strlen(list.tensors[2].name) + 1, 'x', 4);
    list.tensors[2].shape[5] = 99;
    CHECK(plan_tensor_digest(list.tensors, list.count) == tensor_digest);
    CHECK(digest_of(&list, 3, 1000) == digest);
}

static void sizes_of_64_bits(void) {
    static struct list list;
    struct plan plan;
    list.count = 0;
    list_add(&list, "huge", 1000000, 50000, true); /* 5e10 values, 200 GB */
    build(&plan, &list, 64, 262144);
    CHECK_INT(plan.value_count, 50000000000);
    CHECK_INT(plan.block_count, 200000); /* 5 rows each */
    const struct plan_block *last = &plan.blocks[plan.block_count - 1];
    CHECK_INT(last->offset, 49999750000);
    CHECK_NEAR(plan_balance(&plan), 1.0, 1e-12);
    check_blocks(&plan, 262144);
    plan_free(&plan);
}

static void refuse(const struct tensor *tensors, uint64_t count, uint64_t shards, uint64_t values) {
    struct plan plan;
    memset(&plan, 0x5a, sizeof plan);
    CHECK_INT(plan_build(&plan, tensors, count,
                         &(struct plan_options){.shards = shards, .block_values = values}),
              STATUS_INVALID);
    for (size_t i = 0; i < sizeof plan; i++)
        CHECK_INT(((const uint8_t *)&plan)[i], 0x5a);
}

static void refuse_shape(uint64_t rows, uint64_t cols) {
    static struct list list;
    list.count = 0;
    list_add(&list, "w", rows, cols, true);
    list.tensors[0].dims = 2;
    refuse(list.tensors, 1, 1, 1000);
}

static void malformed_lists(void) {
    static struct list list;
    struct plan plan;
    list.count = 0;
    list_add_transformer(&list, 1, 8, 20);
    refuse(list.tensors, 0, 1, 1000);
    refuse(list.tensors, PLAN_TENSORS_MAX + 1, 1, 1000); /* refused before they are looked at */
    refuse(list.tensors, list.count, 0, 1000);
    refuse(list.tensors, list.count, PLAN_SHARDS_MAX + 1, 1000);
    refuse(list.tensors, list.count, 1, 0);
    refuse(list.tensors, list.count, 1, FRAME_PAYLOAD_MAX / 4 + 1);

    refuse_shape(0, 5);
    refuse_shape(5, 0);
    refuse_shape(UINT64_C(1) << 60, 16);           /* 2^64 values */
    refuse_shape(UINT64_C(1) << 58, 16);           /* 2^62 values are 2^64 bytes */
    refuse_shape(UINT64_MAX, 1);                   /* likewise */
    refuse_shape(1, FRAME_PAYLOAD_MAX / 4 + 1);    /* a row that no frame carries */
    refuse_shape((PLAN_BLOCKS_MAX + 1) * 1000, 1); /* too many blocks */
    refuse_shape(UINT64_C(1) << 40, UINT64_C(1) << 20);

    struct tensor kept = list.tensors[2];
    list.tensors[2].dims = 0;
    refuse(list.tensors, list.count, 1, 1000);
    list.tensors[2].dims = TENSOR_DIMS_MAX + 1;
    refuse(list.tensors, list.count, 1, 1000);
    list.tensors[2] = kept;
    list.tensors[2].name[0] = 0;
    refuse(list.tensors, list.count, 1, 1000);
    list.tensors[2].name[0] = '\n';
    refuse(list.tensors, list.count, 1, 1000);
    memset(list.tensors[2].name, 'n', TENSOR_NAME_MAX); /* no end */
    refuse(list.tensors, list.count, 1, 1000);
    memcpy(list.tensors[2].name, list.tensors[0].name, TENSOR_NAME_MAX); /* doubled */
    refuse(list.tensors, list.count, 1, 1000);
    list.tensors[2] = kept;
    build(&plan, &list, 1, 1000);
    plan_free(&plan);
    plan_free(&plan); /* harmless */
}

static void printing(void) {
    static struct list list;
    struct plan plan;
    char text[1024] = "";
    FILE *out = tmpfile();
    CHECK(out != NULL);
    list.count = 0;
    list_add(&list, "w", 3, 10, true);
    build(&plan, &list, 5, 10);
    plan_print(&plan, out);
    rewind(out);
    CHECK(fread(text, 1, sizeof text - 1, out) > 0);
    CHECK(strstr(text, "values  30 in 1 tensors") != NULL);
    CHECK(strstr(text, "blocks  3") != NULL);
    CHECK(strstr(text, "max/mean 1.667") != NULL);
    CHECK(strstr(text, "2 shards own nothing") != NULL);
    fclose(out);
    plan_free(&plan);
}

int main(void) {
    TEST_RUN(blocks_cover_the_vector);
    TEST_RUN(known_blocks);
    TEST_RUN(packs);
    TEST_RUN(more_dimensions);
    TEST_RUN(blocks_do_not_depend_on_shards);
    TEST_RUN(placement_is_lpt);
    TEST_RUN(lpt_property);
    TEST_RUN(more_shards_than_blocks);
    TEST_RUN(digests);
    TEST_RUN(sizes_of_64_bits);
    TEST_RUN(malformed_lists);
    TEST_RUN(printing);
    return 0;
}
