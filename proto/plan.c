#include "proto/plan.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/memory.h"
#include "proto/frame.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES      ((uint64_t)4)
#define BLOCK_VALUES_MAX ((uint64_t)FRAME_PAYLOAD_MAX / VALUE_BYTES)
#define FOLD_WORDS_MAX   ((size_t)16)

_Static_assert(FRAME_PAYLOAD_MAX / 4 <= UINT32_MAX, "a block's count fits a frame's value_count");
_Static_assert(TENSOR_NAME_MAX == FOLD_WORDS_MAX * sizeof(uint64_t), "a name is folded in one go");

/* ---- digests ---- */

/* XXH3 of (digest, words [count]) as little-endian bytes: a chain over items of any number, with no
 * memory, and the same on every machine. */
static uint64_t fold(uint64_t digest, const uint64_t *words, size_t count) {
    uint8_t bytes[(1 + FOLD_WORDS_MAX) * sizeof(uint64_t)];
    ASSERT(count <= FOLD_WORDS_MAX);
    for (size_t i = 0; i <= count; i++) {
        uint64_t word = i == 0 ? digest : words[i - 1];
        for (size_t b = 0; b < sizeof word; b++)
            bytes[i * sizeof word + b] = (uint8_t)(word >> (8 * b));
    }
    return checksum_xxh3(bytes, (count + 1) * sizeof(uint64_t));
}

/* Only the bytes before the 0 count: what lies behind it in the array is anyone's. */
static uint64_t fold_name(uint64_t digest, const char name[TENSOR_NAME_MAX]) {
    uint64_t words[FOLD_WORDS_MAX] = {0};
    size_t bytes = strnlen(name, TENSOR_NAME_MAX);
    for (size_t i = 0; i < bytes; i++)
        words[i / 8] |= (uint64_t)(uint8_t)name[i] << (8 * (i % 8));
    return fold(digest, words, FOLD_WORDS_MAX);
}

uint64_t plan_tensor_digest(const struct tensor *tensors, uint64_t tensor_count) {
    uint64_t digest = fold(0, &tensor_count, 1);
    for (uint64_t i = 0; i < tensor_count; i++) {
        const struct tensor *tensor = &tensors[i];
        digest = fold_name(digest, tensor->name);
        uint64_t head[3] = {tensor->dims, tensor->decay, tensor->embedding};
        digest = fold(digest, head, 3);
        uint32_t dims = tensor->dims < TENSOR_DIMS_MAX ? tensor->dims : TENSOR_DIMS_MAX;
        digest = fold(digest, tensor->shape, dims);
    }
    return digest;
}

static uint64_t bits_of(double value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t digest_plan(const struct plan *plan) {
    uint64_t head[5] = {plan_tensor_digest(plan->tensors, plan->tensor_count), plan->block_count,
                        plan->shard_count, plan->value_count, plan->largest_block};
    uint64_t digest = fold(0, head, 5);
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        uint64_t words[2] = {plan->offsets[i], plan->pack_order[i]};
        digest = fold(digest, words, 2);
    }
    for (uint64_t i = 0; i < plan->block_count; i++) {
        const struct plan_block *block = &plan->blocks[i];
        uint64_t words[12] = {block->id,           block->offset,         block->count,
                              block->rows,         block->cols,           block->first_tensor,
                              block->tensor_count, block->shard,          block->fragment,
                              block->hidden,       bits_of(block->decay), bits_of(block->rate)};
        digest = fold(digest, words, 12);
    }
    return digest;
}

/* ---- checks of the tensor list ---- */

struct extent {
    uint64_t rows, cols, count; /* a vector has one row */
};

/* The extent of a tensor, or false when a dimension is 0 or a product needs more than 64 bits. */
static bool measure(const struct tensor *tensor, struct extent *extent) {
    uint64_t cols = 1;
    uint64_t count = 0;
    uint64_t rows = tensor->dims == 1 ? 1 : tensor->shape[0];
    for (uint32_t i = tensor->dims == 1 ? 0 : 1; i < tensor->dims; i++)
        if (!memory_multiply(cols, tensor->shape[i], &cols)) return false;
    if (!memory_multiply(rows, cols, &count) || count == 0) return false;
    *extent = (struct extent){.rows = rows, .cols = cols, .count = count};
    return true;
}

/* Printable ASCII without spaces: names come from peers, and go to logs and file headers. */
static bool name_is_sound(const char name[TENSOR_NAME_MAX]) {
    if (name[0] == 0 || memchr(name, 0, TENSOR_NAME_MAX) == NULL) return false;
    for (const char *c = name; *c != 0; c++)
        if (*c < 0x21 || *c > 0x7e) return false;
    return true;
}

static enum status check_tensor(const struct tensor *tensor, uint64_t index) {
    struct extent extent = {0};
    if (!name_is_sound(tensor->name)) {
        log_error("tensor %" PRIu64 " has an empty, unprintable or too long name", index);
        return STATUS_INVALID;
    }
    if (tensor->dims < 1 || tensor->dims > TENSOR_DIMS_MAX) {
        log_error("tensor %s has %" PRIu32 " dimensions, allowed are 1 to %d", tensor->name,
                  tensor->dims, TENSOR_DIMS_MAX);
        return STATUS_INVALID;
    }
    if (!measure(tensor, &extent)) {
        log_error("tensor %s has a dimension of 0, or its size overflows 64 bits", tensor->name);
        return STATUS_INVALID;
    }
    if (extent.cols > BLOCK_VALUES_MAX) {
        log_error("tensor %s: one row has %" PRIu64 " values, a frame carries at most %" PRIu64,
                  tensor->name, extent.cols, BLOCK_VALUES_MAX);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

struct entry {
    const char *name;
};

static int compare_names(const void *left, const void *right) {
    const struct entry *a = left;
    const struct entry *b = right;
    return strcmp(a->name, b->name);
}

static enum status check_names_differ(const struct tensor *tensors, uint64_t tensor_count) {
    enum status status = STATUS_OK;
    struct entry *sorted = memory_zeroed(tensor_count, sizeof *sorted);
    for (uint64_t i = 0; i < tensor_count; i++)
        sorted[i].name = tensors[i].name;
    qsort(sorted, tensor_count, sizeof *sorted, compare_names);
    for (uint64_t i = 1; i < tensor_count && status == STATUS_OK; i++) {
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0) {
            log_error("two tensors are named %s", sorted[i].name);
            status = STATUS_INVALID;
        }
    }
    free(sorted);
    return status;
}

static enum status check_arguments(uint64_t tensor_count, const struct plan_options *options) {
    if (tensor_count < 1 || tensor_count > PLAN_TENSORS_MAX) {
        log_error("a plan of %" PRIu64 " tensors, allowed are 1 to %zu", tensor_count,
                  PLAN_TENSORS_MAX);
        return STATUS_INVALID;
    }
    if (options->shards < 1 || options->shards > PLAN_SHARDS_MAX) {
        log_error("a plan for %" PRIu64 " shards, allowed are 1 to %" PRIu64, options->shards,
                  PLAN_SHARDS_MAX);
        return STATUS_INVALID;
    }
    if (options->block_values < 1 || options->block_values > BLOCK_VALUES_MAX) {
        log_error("blocks of %" PRIu64 " values, allowed are 1 to %" PRIu64, options->block_values,
                  BLOCK_VALUES_MAX);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

/* ---- factors of rate and decay ---- */

/* One PATTERN=FACTOR of `bytes` characters -> does the pattern fit, and the factor. */
static enum status read_factor(const char *item, size_t bytes, const char *name, bool *fits,
                               double *factor) {
    char copy[TENSOR_NAME_MAX + 32];
    char *end = NULL;
    if (bytes >= sizeof copy) return STATUS_INVALID;
    memcpy(copy, item, bytes);
    copy[bytes] = 0;
    char *equals = strrchr(copy, '=');
    if (equals == NULL || equals == copy || equals[1] == 0) return STATUS_INVALID;
    *equals = 0;
    *factor = strtod(equals + 1, &end);
    if (*end != 0 || !isfinite(*factor) || *factor < 0) return STATUS_INVALID;
    *fits = fnmatch(copy, name, 0) == 0;
    return STATUS_OK;
}

enum status plan_factor(const char *text, const char *name, double *factor) {
    double found = 1;
    bool open = true; /* the first that fits counts; the rest is only checked */
    while (text != NULL && *text != 0) {
        size_t bytes = strcspn(text, ",");
        double value = 1;
        bool fits = false;
        TRY(read_factor(text, bytes, name, &fits, &value));
        if (fits && open) {
            found = value;
            open = false;
        }
        text += bytes;
        if (*text == ',' && *++text == 0) return STATUS_INVALID;
    }
    *factor = found;
    return STATUS_OK;
}

/* What the options say of one tensor. */
struct traits {
    double decay, rate;
};

static struct traits traits_of(const struct tensor *tensor, const struct plan_options *options) {
    struct traits traits = {0};
    ASSERT(plan_factor(options->rates, tensor->name, &traits.rate) == STATUS_OK);
    if (tensor->decay)
        ASSERT(plan_factor(options->decays, tensor->name, &traits.decay) == STATUS_OK);
    return traits;
}

static enum status check_factors(const struct plan_options *options) {
    double factor = 0;
    if (plan_factor(options->rates, "", &factor) == STATUS_OK &&
        plan_factor(options->decays, "", &factor) == STATUS_OK)
        return STATUS_OK;
    log_error("factors of tensors (--rates, --decays) are PATTERN=FACTOR,PATTERN=FACTOR with "
              "factors from 0");
    return STATUS_INVALID;
}

/* ---- cutting into blocks ---- */

static uint64_t rows_of_slice(uint64_t cols, uint64_t block_values) {
    return cols < block_values ? block_values / cols : 1;
}

/* Checks every tensor and their sum, before anything is made that has their size: -> most blocks
 * that they can need, values altogether. */
static enum status survey(const struct tensor *tensors, uint64_t tensor_count,
                          uint64_t block_values, uint64_t *block_bound, uint64_t *value_count) {
    uint64_t bound = 0;
    uint64_t values = 0;
    for (uint64_t i = 0; i < tensor_count; i++) {
        struct extent extent = {0};
        TRY(check_tensor(&tensors[i], i));
        ASSERT(measure(&tensors[i], &extent));
        if (extent.count > UINT64_MAX / VALUE_BYTES - values) {
            log_error("with tensor %s the model's bytes overflow 64 bits", tensors[i].name);
            return STATUS_INVALID;
        }
        values += extent.count;
        uint64_t slice = rows_of_slice(extent.cols, block_values);
        uint64_t blocks = extent.rows / slice + (extent.rows % slice != 0);
        if (blocks > PLAN_BLOCKS_MAX - bound) {
            log_error("with tensor %s there are more than %" PRIu64
                      " blocks, more values a block are needed than %" PRIu64,
                      tensors[i].name, PLAN_BLOCKS_MAX, block_values);
            return STATUS_INVALID;
        }
        bound += blocks;
    }
    *block_bound = bound;
    *value_count = values;
    return check_names_differ(tensors, tensor_count);
}

static void copy_tensors(struct plan *plan, const struct tensor *tensors) {
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        plan->tensors[i] = (struct tensor){
            .dims = tensors[i].dims, .decay = tensors[i].decay, .embedding = tensors[i].embedding};
        memcpy(plan->tensors[i].name, tensors[i].name, strlen(tensors[i].name));
        for (uint32_t d = 0; d < tensors[i].dims; d++)
            plan->tensors[i].shape[d] = tensors[i].shape[d];
    }
}

/* Flat vector: matrices in the model's order, then vectors in the model's order. */
static void lay_out(struct plan *plan) {
    uint64_t ordered = 0;
    uint64_t offset = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < plan->tensor_count; i++) {
            struct extent extent = {0};
            if ((plan->tensors[i].dims == 1) != (pass == 1)) continue;
            ASSERT(measure(&plan->tensors[i], &extent));
            plan->offsets[i] = offset;
            plan->pack_order[ordered] = i;
            offset += extent.count;
            ordered++;
        }
    }
    ASSERT(ordered == plan->tensor_count && offset == plan->value_count);
}

static void add_block(struct plan *plan, struct plan_block block) {
    block.id = plan->block_count;
    block.count = block.rows * block.cols;
    plan->blocks[plan->block_count] = block;
    plan->block_count++;
    if (block.count > plan->largest_block) plan->largest_block = block.count;
}

static void cut_matrix(struct plan *plan, uint64_t position, const struct plan_options *options) {
    uint64_t index = plan->pack_order[position];
    const struct tensor *tensor = &plan->tensors[index];
    struct traits traits = traits_of(tensor, options);
    struct extent extent = {0};
    ASSERT(measure(tensor, &extent));
    bool whole = options->whole && extent.count <= BLOCK_VALUES_MAX;
    uint64_t slice = whole ? extent.rows : rows_of_slice(extent.cols, options->block_values);
    for (uint64_t row = 0; row < extent.rows; row += slice) {
        uint64_t left = extent.rows - row;
        add_block(plan, (struct plan_block){.offset = plan->offsets[index] + row * extent.cols,
                                            .rows = left < slice ? left : slice,
                                            .cols = extent.cols,
                                            .first_tensor = position,
                                            .tensor_count = 1,
                                            .decay = traits.decay,
                                            .rate = traits.rate,
                                            .hidden = slice >= extent.rows && !tensor->embedding});
        if (left <= slice) break; // row + slice may not fit 64 bits
    }
}

/* The pack that starts at `position`; returns the position after it. */
static uint64_t cut_pack(struct plan *plan, uint64_t position, const struct plan_options *options) {
    const struct tensor *first = &plan->tensors[plan->pack_order[position]];
    struct traits traits = traits_of(first, options);
    uint64_t values = first->shape[0];
    uint64_t end = position + 1;
    for (; end < plan->tensor_count; end++) {
        const struct tensor *next = &plan->tensors[plan->pack_order[end]];
        struct traits other = traits_of(next, options);
        if (other.decay != traits.decay || other.rate != traits.rate) break;
        if (values >= options->block_values || next->shape[0] > options->block_values - values)
            break;
        values += next->shape[0];
    }
    add_block(plan, (struct plan_block){.offset = plan->offsets[plan->pack_order[position]],
                                        .rows = 1,
                                        .cols = values,
                                        .first_tensor = position,
                                        .tensor_count = end - position,
                                        .decay = traits.decay,
                                        .rate = traits.rate});
    return end;
}

static void cut(struct plan *plan, const struct plan_options *options) {
    uint64_t position = 0;
    while (position < plan->tensor_count) {
        if (plan->tensors[plan->pack_order[position]].dims == 1) {
            position = cut_pack(plan, position, options);
        } else {
            cut_matrix(plan, position, options);
            position++;
        }
    }
}

/* ---- placement on shards and fragments ---- */

/* A shard or a fragment. */
struct owner {
    uint64_t values;
    uint64_t place;
};

static bool owner_before(const struct owner *left, const struct owner *right) {
    if (left->values != right->values) return left->values < right->values;
    return left->place < right->place;
}

/* Restores the heap (least loaded owner first) after its first element grew. */
static void sift_down(struct owner *heap, uint64_t count) {
    uint64_t at = 0;
    for (;;) {
        uint64_t least = at;
        for (uint64_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (owner_before(&heap[child], &heap[least])) least = child;
        if (least == at) return;
        struct owner moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

struct load {
    uint64_t values;
    uint64_t block;
};

static int compare_longest_first(const void *left, const void *right) {
    const struct load *a = left;
    const struct load *b = right;
    if (a->values != b->values) return a->values > b->values ? -1 : 1;
    return a->block < b->block ? -1 : a->block > b->block;
}

/* Longest first onto the emptiest of `places` -> each block's place. Frozen blocks too, if `all`;
 * else their place is not set. */
static void spread(const struct plan *plan, uint64_t places, bool all, uint64_t *place_of) {
    struct load *sorted = memory_zeroed(plan->block_count, sizeof *sorted);
    struct owner *heap = memory_zeroed(places, sizeof *heap);
    uint64_t count = 0;
    for (uint64_t i = 0; i < plan->block_count; i++) {
        if (all || plan->blocks[i].rate > 0)
            sorted[count++] = (struct load){.values = plan->blocks[i].count, .block = i};
    }
    for (uint64_t i = 0; i < places; i++)
        heap[i].place = i;
    qsort(sorted, count, sizeof *sorted, compare_longest_first);
    for (uint64_t i = 0; i < count; i++) {
        place_of[sorted[i].block] = heap[0].place;
        heap[0].values += sorted[i].values;
        sift_down(heap, places);
    }
    free(heap);
    free(sorted);
}

static void place(struct plan *plan) {
    uint64_t *place_of = memory_zeroed(plan->block_count, sizeof *place_of);
    spread(plan, plan->shard_count, true, place_of);
    for (uint64_t i = 0; i < plan->block_count; i++)
        plan->blocks[i].shard = place_of[i];
    spread(plan, plan->fragment_count, false, place_of);
    for (uint64_t i = 0; i < plan->block_count; i++)
        plan->blocks[i].fragment = plan->blocks[i].rate > 0 ? place_of[i] : PLAN_FROZEN;
    free(place_of);
}

/* Each fragment must have something to report. */
static enum status check_fragments(const struct plan *plan) {
    uint64_t moving = 0;
    for (uint64_t i = 0; i < plan->block_count; i++)
        moving += plan->blocks[i].rate > 0 ? 1 : 0;
    if (moving == 0) {
        log_error("every tensor is frozen (--rates)");
        return STATUS_INVALID;
    }
    if (moving < plan->fragment_count) {
        log_error("%" PRIu64 " --fragments of %" PRIu64
                  " blocks: fewer fragments or smaller --block-values are needed",
                  plan->fragment_count, moving);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

/* ---- the plan ---- */

enum status plan_build(struct plan *plan, const struct tensor *tensors, uint64_t tensor_count,
                       const struct plan_options *options) {
    uint64_t block_bound = 0;
    uint64_t value_count = 0;
    TRY(check_arguments(tensor_count, options));
    TRY(check_factors(options));
    TRY(survey(tensors, tensor_count, options->block_values, &block_bound, &value_count));

    struct plan built = {.tensor_count = tensor_count,
                         .shard_count = options->shards,
                         .fragment_count = options->fragments > 1 ? options->fragments : 1,
                         .value_count = value_count};
    built.tensors = memory_zeroed(tensor_count, sizeof *built.tensors);
    built.offsets = memory_zeroed(tensor_count, sizeof *built.offsets);
    built.pack_order = memory_zeroed(tensor_count, sizeof *built.pack_order);
    built.blocks = memory_zeroed(block_bound, sizeof *built.blocks);
    copy_tensors(&built, tensors);
    lay_out(&built);
    cut(&built, options);
    ASSERT(built.block_count <= block_bound);
    enum status status = check_fragments(&built);
    if (status != STATUS_OK) {
        plan_free(&built);
        return status;
    }
    place(&built);
    built.digest = digest_plan(&built);
    *plan = built;
    return STATUS_OK;
}

void plan_free(struct plan *plan) {
    free(plan->tensors);
    free(plan->offsets);
    free(plan->pack_order);
    free(plan->blocks);
    *plan = (struct plan){0};
}

static uint64_t fullest_shard(const struct plan *plan) {
    uint64_t *values = memory_zeroed(plan->shard_count, sizeof *values);
    uint64_t most = 0;
    for (uint64_t i = 0; i < plan->block_count; i++) {
        const struct plan_block *block = &plan->blocks[i];
        values[block->shard] += block->count;
        if (values[block->shard] > most) most = values[block->shard];
    }
    free(values);
    return most;
}

double plan_balance(const struct plan *plan) {
    double mean = (double)plan->value_count / (double)plan->shard_count;
    return (double)fullest_shard(plan) / mean;
}

void plan_print(const struct plan *plan, FILE *out) {
    double mib = (double)plan->value_count * (double)VALUE_BYTES / (double)(1 << 20);
    fprintf(out, "values  %" PRIu64 " in %" PRIu64 " tensors, %.1f MiB as f32\n", plan->value_count,
            plan->tensor_count, mib);
    fprintf(out, "blocks  %" PRIu64 ", the largest of %" PRIu64 " values\n", plan->block_count,
            plan->largest_block);
    fprintf(out, "shards  %" PRIu64 ", %.1f MiB each on average, max/mean %.3f\n",
            plan->shard_count, mib / (double)plan->shard_count, plan_balance(plan));
    if (plan->shard_count > plan->block_count)
        fprintf(out, "        %" PRIu64 " shards own nothing: more shards than blocks\n",
                plan->shard_count - plan->block_count);
    fprintf(out, "digest  %016" PRIx64 "\n", plan->digest);
}
