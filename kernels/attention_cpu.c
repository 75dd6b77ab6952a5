/* attention_cpu.c - tiles of TILE queries by TILE keys; forward's task is a tile of queries of a
 * head, backward's a head of keys and values with all its queries. With few heads backward goes
 * over the tiles twice, for the gradients of keys and values with a tile of keys as the task, and
 * for those of the queries with a tile of queries. Either way each sum is one task's and its terms
 * come in the same order, so that the bits do not depend on the thread count.
 *
 * Scores are kept transposed, [keys, queries]: then the softmax goes down the columns with a query
 * in each lane, and of all operands only the tile of queries (in backward also of y's gradient) has
 * to be transposed, once for all tiles of keys. On the diagonal, products and softmax leave out
 * what is above it, in steps of LANES.
 */
#include "base/assert.h"
#include "kernels/attention.h"
#include "kernels/dispatch.h"
#include "kernels/dropout_lanes.h"
#include "kernels/exp.h"
#include "kernels/tile_matmul.h"

#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <string.h>

enum {
    TILE = 64,            /* a multiple of LANES */
    LANES = TILE_COLUMNS, /* queries that the softmax takes at a time */
    CORNER = 4            /* a transposition's unit */
};

typedef float quad __attribute__((vector_size(CORNER * sizeof(float))));

/* A shape, and the distances that follow from it. */
struct layout {
    int64_t B, T, heads, kv_heads, D;
    int64_t width; /* D up to a multiple of TILE_COLUMNS: row of a tile in scratch */
    int64_t stride_qkv, stride_y;
    float scale;
    const struct dropout *dropout; /* or NULL */
};

/* A task's scratch. */
struct work {
    float *queries;               /* [TILE, width], scaled */
    float *queries_t;             /* [width, TILE] */
    float *dy;                    /* [TILE, width] */
    float *dy_t;                  /* [width, TILE] */
    float *other;                 /* [TILE, width] keys or values */
    float *sums;                  /* [TILE, width] of y, or of the queries' gradient */
    float *p;                     /* [TILE keys, TILE queries] scores, then probabilities */
    float *dp;                    /* [TILE keys, TILE queries] their gradients */
    float *most, *total, *factor; /* [TILE]: of forward */
    float *lse, *mean;            /* [TILE]: of backward; the first two of these */
};

/* Queries first .. first + count - 1 and keys first_key .. first_key + keys - 1 of a head. */
struct tile {
    int64_t head; /* b * heads + h */
    int64_t first, count, first_key, keys;
    bool diagonal; /* first == first_key: queries do not see all of the keys */
    bool add;      /* to the gradients of keys and values, which others have set */
};

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static struct layout layout_of(const struct attention_shape *shape) {
    ASSERT_OP(shape->heads % shape->kv_heads, ==, 0);
    int64_t D = shape->head_size;
    return (struct layout){.B = shape->B,
                           .T = shape->T,
                           .heads = shape->heads,
                           .kv_heads = shape->kv_heads,
                           .D = D,
                           .width = (D + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS,
                           .stride_qkv = (shape->heads + 2 * shape->kv_heads) * D,
                           .stride_y = shape->heads * D,
                           .scale = 1.0F / sqrtf((float)D),
                           .dropout = shape->dropout};
}

/* Floats of a struct work. */
static int64_t work_size(const struct layout *layout) {
    return TILE * (6 * layout->width + INT64_C(2) * TILE + 3);
}

static struct work work_of(const struct layout *layout, float *scratch, int64_t slot) {
    int64_t rows = TILE * layout->width;
    float *at = scratch + slot * work_size(layout);
    float *scores = at + 6 * rows, *lanes = scores + INT64_C(2) * TILE * TILE;
    return (struct work){.queries = at,
                         .queries_t = at + rows,
                         .dy = at + 2 * rows,
                         .dy_t = at + 3 * rows,
                         .other = at + 4 * rows,
                         .sums = at + 5 * rows,
                         .p = scores,
                         .dp = scores + INT64_C(1) * TILE * TILE,
                         .most = lanes,
                         .total = lanes + TILE,
                         .factor = lanes + INT64_C(2) * TILE,
                         .lse = lanes,
                         .mean = lanes + TILE};
}

/* from [count, D] with rows `stride` apart, times scale -> to [count, width], zero beyond D. */
KERNEL_CLONES static void pack_rows(const struct layout *layout, const float *restrict from,
                                    int64_t stride, int64_t count, float scale,
                                    float *restrict to) {
    int64_t D = layout->D, width = layout->width;
    for (int64_t i = 0; i < count; i++) {
        const float *row = from + i * stride;
        for (int64_t d = 0; d < D; d++)
            to[i * width + d] = row[d] * scale;
        for (int64_t d = D; d < width; d++)
            to[i * width + d] = 0.0F;
    }
}

/* Four rows of four, `stride` apart -> their columns, TILE apart. */
static void transpose_corner(const float *from, int64_t stride, float *to) {
    quad a, b, c, d;
    memcpy(&a, from, sizeof a);
    memcpy(&b, from + stride, sizeof b);
    memcpy(&c, from + 2 * stride, sizeof c);
    memcpy(&d, from + 3 * stride, sizeof d);
    quad low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    quad high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    quad low_cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    quad high_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5);
    b = __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7);
    c = __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5);
    d = __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7);
    memcpy(to, &a, sizeof a);
    memcpy(to + TILE, &b, sizeof b);
    memcpy(to + INT64_C(2) * TILE, &c, sizeof c);
    memcpy(to + INT64_C(3) * TILE, &d, sizeof d);
}

/* from [count, width] -> to [width, TILE]; columns from count on become zero up to a multiple of
 * LANES. */
static void transpose(float *from, int64_t count, int64_t width, float *to) {
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    memset(from + count * width, 0, (size_t)((padded - count) * width) * sizeof *from);
    for (int64_t i = 0; i < padded; i += CORNER) {
        for (int64_t d = 0; d < width; d += CORNER)
            transpose_corner(from + i * width + d, width, to + d * TILE + i);
    }
}

/* left [keys, D] times the transposed tile right_t -> scores [keys, queries]. On the diagonal only
 * columns from a step's first key on. */
static void multiply_scores(const struct layout *layout, const struct tile *tile, const float *left,
                            const float *right_t, float *scores) {
    int64_t columns = (tile->count + LANES - 1) / LANES * LANES;
    int64_t step = tile->diagonal ? LANES : tile->keys;
    for (int64_t i = 0; i < tile->keys; i += step) {
        int64_t from = tile->diagonal ? i : 0;
        struct matmul shape = {.rows = smaller(step, tile->keys - i),
                               .cols = columns - from,
                               .inner = layout->D,
                               .stride_a = layout->stride_qkv,
                               .stride_b = TILE,
                               .stride_c = TILE};
        tile_matmul(&shape, left + i * layout->stride_qkv, right_t + from,
                    scores + i * TILE + from);
    }
}

/* A right operand, rows `stride` apart. */
struct right {
    const float *values;
    int64_t stride;
};

/* count rows of keys or values: where they are if their width is whole vectors; else a copy. */
static struct right right_of(const struct layout *layout, const struct work *work,
                             const float *from, int64_t count) {
    if (layout->D == layout->width) return (struct right){from, layout->stride_qkv};
    pack_rows(layout, from, layout->stride_qkv, count, 1.0F, work->other);
    return (struct right){work->other, layout->width};
}

/* Sums over keys: sums [queries, width] (+)= scores' [queries, keys] right [keys, width]. On the
 * diagonal only keys up to a step's last query. */
static void multiply_keys(const struct layout *layout, const struct tile *tile, const float *scores,
                          struct right right, float *sums) {
    int64_t step = tile->diagonal ? LANES : tile->count;
    for (int64_t i = 0; i < tile->count; i += step) {
        struct matmul shape = {.rows = smaller(step, tile->count - i),
                               .cols = layout->width,
                               .inner = tile->diagonal ? smaller(i + step, tile->keys) : tile->keys,
                               .transpose_a = true,
                               .stride_a = TILE,
                               .stride_b = right.stride,
                               .stride_c = layout->width,
                               .accumulate = tile->first_key > 0};
        tile_matmul(&shape, scores + i, right.values, sums + i * layout->width);
    }
}

/* Sums over queries: grad [keys, D] (+)= scores [keys, queries] right [queries, width]. On the
 * diagonal only queries from a step's first key on. */
static void multiply_queries(const struct layout *layout, const struct tile *tile,
                             const float *scores, const float *right, float *grad) {
    int64_t step = tile->diagonal ? LANES : tile->keys;
    for (int64_t i = 0; i < tile->keys; i += step) {
        int64_t from = tile->diagonal ? i : 0;
        struct matmul shape = {.rows = smaller(step, tile->keys - i),
                               .cols = layout->D,
                               .inner = tile->count - from,
                               .stride_a = TILE,
                               .stride_b = layout->width,
                               .stride_c = layout->stride_qkv,
                               .accumulate = tile->add};
        tile_matmul(&shape, scores + i * TILE + from, right + from * layout->width,
                    grad + i * layout->stride_qkv);
    }
}

/* LANES queries from column `first` on, whose scores go down p [keys, TILE]. Scores become
 * exp(score - maximum so far), or 0 where the key comes after the query; most and total are brought
 * up to date, and factor is what sums made with the former maximum must be multiplied by. */
KERNEL_CLONES static void softmax_columns(const struct tile *tile, const struct work *work,
                                          int64_t first) {
    int64_t keys = tile->diagonal ? smaller(tile->keys, first + LANES) : tile->keys;
    float *p = work->p + first;
    float high[LANES], sum[LANES];
    memcpy(high, work->most + first, sizeof high);
    for (int64_t k = 0; k < keys; k++) {
        float *restrict row = p + k * TILE;
        for (int64_t l = 0; tile->diagonal && l < k - first; l++)
            row[l] = -INFINITY;
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            high[l] = row[l] > high[l] ? row[l] : high[l];
    }
    for (int l = 0; l < LANES; l++) {
        work->factor[first + l] = exp_f32(work->most[first + l] - high[l]);
        sum[l] = work->total[first + l] * work->factor[first + l];
    }
    for (int64_t k = 0; k < keys; k++) {
        float *restrict row = p + k * TILE;
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float e = exp_f32(row[l] - high[l]);
            row[l] = e;
            sum[l] += e;
        }
    }
    memcpy(work->most + first, high, sizeof high);
    memcpy(work->total + first, sum, sizeof sum);
}

/* Factors of the probabilities of LANES queries from column `first` on, and of the keys k .. k + 3
 * of the tile; k is a multiple of 4. */
DROPOUT_INLINE void tile_factors(const struct dropout *dropout, const struct tile *tile,
                                 int64_t first, int64_t k, float factors[DROPOUT_WORDS][LANES]) {
    const uint32_t counter[4] = {(uint32_t)((tile->first_key + k) / DROPOUT_WORDS),
                                 (uint32_t)(tile->first + first), (uint32_t)tile->head,
                                 (uint32_t)((uint64_t)tile->head >> 32)};
    dropout_lanes(dropout, counter, factors);
}

/* What softmax_columns left, dropped. */
KERNEL_CLONES static void drop_columns(const struct dropout *dropout, const struct tile *tile,
                                       const struct work *work, int64_t first) {
    int64_t keys = tile->diagonal ? smaller(tile->keys, first + LANES) : tile->keys;
    float factors[DROPOUT_WORDS][LANES];
    for (int64_t k = 0; k < keys; k++) {
        float *restrict row = work->p + k * TILE + first;
        if (k % DROPOUT_WORDS == 0) tile_factors(dropout, tile, first, k, factors);
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            row[l] *= factors[k % DROPOUT_WORDS][l];
    }
}

/* Likewise: scores p -> probabilities, dropped where dropout says so, and gradients dp of these ->
 * gradients of the scores. Where the probability is zero, so is the result, once dp is finite. */
DROPOUT_INLINE void softmax_backward_body(const struct dropout *dropout, const struct tile *tile,
                                          const struct work *work, int64_t first) {
    int64_t keys = tile->diagonal ? smaller(tile->keys, first + LANES) : tile->keys;
    float *p = work->p + first, *dp = work->dp + first;
    float lse[LANES], mean[LANES], factors[DROPOUT_WORDS][LANES];
    memcpy(lse, work->lse + first, sizeof lse);
    memcpy(mean, work->mean + first, sizeof mean);
    for (int64_t k = 0; k < keys; k++) {
        float *restrict row = p + k * TILE, *restrict d = dp + k * TILE;
        for (int64_t l = 0; tile->diagonal && l < k - first; l++)
            row[l] = -INFINITY;
        if (dropout && k % DROPOUT_WORDS == 0) tile_factors(dropout, tile, first, k, factors);
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float e = exp_f32(row[l] - lse[l]);
            float factor = dropout ? factors[k % DROPOUT_WORDS][l] : 1.0F;
            row[l] = e * factor;
            d[l] = e * (d[l] * factor - mean[l]);
        }
    }
}

KERNEL_CLONES static void softmax_backward_columns(const struct tile *tile, const struct work *work,
                                                   int64_t first) {
    softmax_backward_body(NULL, tile, work, first);
}

KERNEL_CLONES static void softmax_backward_columns_drop(const struct dropout *dropout,
                                                        const struct tile *tile,
                                                        const struct work *work, int64_t first) {
    softmax_backward_body(dropout, tile, work, first);
}

/* Each row of sums [count, width] times its factor -> to, of `columns`; to may be sums. */
KERNEL_CLONES static void scale_rows(const float *sums, const float *factor, int64_t count,
                                     int64_t width, float *to, const int64_t to_shape[2]) {
    for (int64_t i = 0; i < count; i++) {
#pragma omp simd
        for (int64_t d = 0; d < to_shape[1]; d++)
            to[i * to_shape[0] + d] = sums[i * width + d] * factor[i];
    }
}

static void forward_tile(const struct layout *layout, const struct work *work, struct tile tile,
                         const float *qkv, const float *key, float *lse, float *y) {
    const float *value = key + layout->kv_heads * layout->D;
    int64_t stride = layout->stride_qkv, width = layout->width;
    const int64_t in_sums[2] = {width, width}, in_y[2] = {layout->stride_y, layout->D};
    pack_rows(layout, qkv + tile.first * stride, stride, tile.count, layout->scale, work->queries);
    transpose(work->queries, tile.count, width, work->queries_t);
    for (int l = 0; l < TILE; l++) {
        work->most[l] = -INFINITY;
        work->total[l] = 0.0F;
    }
    for (int64_t k = 0; k <= tile.first; k += TILE) {
        tile.first_key = k;
        tile.keys = smaller(TILE, layout->T - k);
        tile.diagonal = k == tile.first;
        multiply_scores(layout, &tile, key + k * stride, work->queries_t, work->p);
        for (int64_t q = 0; q < tile.count; q += LANES) {
            softmax_columns(&tile, work, q);
            if (layout->dropout) drop_columns(layout->dropout, &tile, work, q);
        }
        if (k > 0) scale_rows(work->sums, work->factor, tile.count, width, work->sums, in_sums);
        multiply_keys(layout, &tile, work->p, right_of(layout, work, value + k * stride, tile.keys),
                      work->sums);
    }
    for (int64_t q = 0; q < tile.count; q++) {
        lse[tile.first + q] = work->most[q] + logf(work->total[q]);
        work->factor[q] = 1.0F / work->total[q];
    }
    scale_rows(work->sums, work->factor, tile.count, width, y + tile.first * layout->stride_y,
               in_y);
}

static int64_t tiles_of(const struct layout *layout) {
    return (layout->T + TILE - 1) / TILE;
}

/* Of a parallel region: all, even where some have nothing to do, since a smaller team makes OpenMP
 * end the threads that it has no use for and start them again later. */
static int team_size(void) {
    return (int)smaller(ATTENTION_THREADS_MAX, omp_get_max_threads());
}

/* The scratch of task i of `tasks`: its thread's, or, of fewer tasks than threads, its own. */
static struct work work_for(const struct layout *layout, float *scratch, int64_t i, int64_t tasks) {
    bool own = tasks < omp_get_num_threads();
    return work_of(layout, scratch, own ? i : omp_get_thread_num());
}

int64_t attention_scratch(const struct attention_shape *shape) {
    const struct layout layout = layout_of(shape);
    int64_t tasks = smaller(layout.B * layout.heads, ATTENTION_THREADS_MAX) * tiles_of(&layout);
    return smaller(tasks, ATTENTION_THREADS_MAX) * work_size(&layout);
}

void attention_forward(const struct attention_shape *shape, const float *qkv, float *lse, float *y,
                       float *scratch) {
    const struct layout layout = layout_of(shape);
    int64_t T = layout.T, D = layout.D, tiles = tiles_of(&layout), H = layout.heads;
    int64_t tasks = layout.B * H * tiles;
    /* The last tiles have the most keys: first, so that threads end together. */
#pragma omp parallel for schedule(dynamic) num_threads(team_size())
    for (int64_t i = 0; i < tasks; i++) {
        const struct work work = work_for(&layout, scratch, i, tasks);
        int64_t b = i / tiles / H, h = i / tiles % H, first = (tiles - 1 - i % tiles) * TILE;
        struct tile tile = {.head = b * H + h, .first = first, .count = smaller(TILE, T - first)};
        const float *row = qkv + b * T * layout.stride_qkv;
        const float *key = row + (H + h / (H / layout.kv_heads)) * D;
        forward_tile(&layout, &work, tile, row + h * D, key, lse + (b * H + h) * T,
                     y + b * T * layout.stride_y + h * D);
    }
}

/* Mean of the gradient of a query's probabilities, weighted with these: dy y'. */
KERNEL_CLONES static void gradient_means(const struct layout *layout, const float *restrict dy,
                                         const float *restrict y, int64_t count,
                                         float *restrict mean) {
    int64_t D = layout->D;
    for (int64_t i = 0; i < count; i++) {
        const float *restrict dy_row = dy + i * layout->width;
        const float *restrict y_row = y + i * layout->stride_y;
        float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < D; d++)
            sum += dy_row[d] * y_row[d];
        mean[i] = sum;
    }
}

/* What backward works on: one head of queries' arrays, each at position 0. */
struct backward_head {
    int64_t head; /* b * heads + h */
    const float *query, *key, *y, *lse, *dy;
    float *dquery, *dkey;
};

/* All of a backward pass. */
struct backward {
    struct layout layout;
    const struct attention_saved *saved;
    const float *dy;
    float *dqkv, *scratch;
};

static struct backward_head head_of(const struct backward *pass, int64_t b, int64_t h) {
    const struct layout *layout = &pass->layout;
    int64_t T = layout->T, D = layout->D, H = layout->heads;
    int64_t row = b * T * layout->stride_qkv, in_y = b * T * layout->stride_y + h * D;
    int64_t query = row + h * D, key = row + (H + h / (H / layout->kv_heads)) * D;
    float *dquery = pass->dqkv + query, *dkey = pass->dqkv + key;
    return (struct backward_head){.head = b * H + h,
                                  .query = pass->saved->qkv + query,
                                  .key = pass->saved->qkv + key,
                                  .y = pass->saved->y + in_y,
                                  .lse = pass->saved->lse + (b * H + h) * T,
                                  .dy = pass->dy + in_y,
                                  .dquery = dquery,
                                  .dkey = dkey};
}

/* The tile of queries whose first is `first`, with no keys yet. */
static struct tile load_queries(const struct layout *layout, const struct work *work,
                                const struct backward_head *head, int64_t first) {
    int64_t stride = layout->stride_qkv, in_y = first * layout->stride_y;
    struct tile tile = {
        .head = head->head, .first = first, .count = smaller(TILE, layout->T - first)};
    pack_rows(layout, head->query + first * stride, stride, tile.count, layout->scale,
              work->queries);
    transpose(work->queries, tile.count, layout->width, work->queries_t);
    pack_rows(layout, head->dy + in_y, layout->stride_y, tile.count, 1.0F, work->dy);
    transpose(work->dy, tile.count, layout->width, work->dy_t);
    memset(work->lse, 0, TILE * sizeof *work->lse);
    memset(work->mean, 0, TILE * sizeof *work->mean);
    memcpy(work->lse, head->lse + first, (size_t)tile.count * sizeof *work->lse);
    gradient_means(layout, work->dy, head->y + in_y, tile.count, work->mean);
    return tile;
}

/* Probabilities -> p, and the scores' gradients -> dp, with the keys from first_key on. */
static void backward_scores(const struct layout *layout, const struct work *work, struct tile *tile,
                            const struct backward_head *head, int64_t first_key) {
    const float *key = head->key + first_key * layout->stride_qkv;
    tile->first_key = first_key;
    tile->keys = smaller(TILE, layout->T - first_key);
    tile->diagonal = first_key == tile->first;
    multiply_scores(layout, tile, key, work->queries_t, work->p);
    multiply_scores(layout, tile, key + layout->kv_heads * layout->D, work->dy_t, work->dp);
    for (int64_t q = 0; q < tile->count; q += LANES) {
        if (layout->dropout)
            softmax_backward_columns_drop(layout->dropout, tile, work, q);
        else
            softmax_backward_columns(tile, work, q);
    }
}

/* The tile's share of the gradients of keys and values: added, or set with `set`. */
static void backward_keys(const struct layout *layout, const struct work *work, struct tile *tile,
                          const struct backward_head *head, bool set) {
    float *dkey = head->dkey + tile->first_key * layout->stride_qkv;
    tile->add = !set;
    multiply_queries(layout, tile, work->p, work->dy, dkey + layout->kv_heads * layout->D);
    /* The queries in scratch are scaled already, the keys are not. */
    multiply_queries(layout, tile, work->dp, work->queries, dkey);
}

/* Its share of the gradients of the queries -> sums. */
static void backward_queries(const struct layout *layout, const struct work *work,
                             const struct tile *tile, const struct backward_head *head) {
    const float *key = head->key + tile->first_key * layout->stride_qkv;
    multiply_keys(layout, tile, work->dp, right_of(layout, work, key, tile->keys), work->sums);
}

static void store_queries(const struct layout *layout, const struct work *work,
                          const struct tile *tile, const struct backward_head *head) {
    float factor[TILE];
    const int64_t in_qkv[2] = {layout->stride_qkv, layout->D};
    for (int q = 0; q < TILE; q++)
        factor[q] = layout->scale;
    scale_rows(work->sums, factor, tile->count, layout->width,
               head->dquery + tile->first * layout->stride_qkv, in_qkv);
}

/* A head of keys and values, with all queries that look at it: tile after tile, and of each tile
 * head after head. */
static void backward_whole(const struct backward *pass, const struct work *work, int64_t b,
                           int64_t kv) {
    const struct layout *layout = &pass->layout;
    int64_t group = layout->heads / layout->kv_heads;
    for (int64_t j = 0; j < group * tiles_of(layout); j++) {
        struct backward_head head = head_of(pass, b, kv * group + j % group);
        struct tile tile = load_queries(layout, work, &head, j / group * TILE);
        for (int64_t k = 0; k <= tile.first; k += TILE) {
            backward_scores(layout, work, &tile, &head, k);
            backward_keys(layout, work, &tile, &head, tile.diagonal && j % group == 0);
            backward_queries(layout, work, &tile, &head);
        }
        store_queries(layout, work, &tile, &head);
    }
}

/* A tile of keys and values alone, in the same order. */
static void backward_key_tile(const struct backward *pass, const struct work *work, int64_t b,
                              int64_t kv, int64_t first_key) {
    const struct layout *layout = &pass->layout;
    int64_t group = layout->heads / layout->kv_heads;
    for (int64_t j = first_key / TILE * group; j < group * tiles_of(layout); j++) {
        struct backward_head head = head_of(pass, b, kv * group + j % group);
        struct tile tile = load_queries(layout, work, &head, j / group * TILE);
        backward_scores(layout, work, &tile, &head, first_key);
        backward_keys(layout, work, &tile, &head, tile.diagonal && j % group == 0);
    }
}

static void backward_query_tile(const struct backward *pass, const struct work *work, int64_t b,
                                int64_t h, int64_t first) {
    const struct layout *layout = &pass->layout;
    struct backward_head head = head_of(pass, b, h);
    struct tile tile = load_queries(layout, work, &head, first);
    for (int64_t k = 0; k <= first; k += TILE) {
        backward_scores(layout, work, &tile, &head, k);
        backward_queries(layout, work, &tile, &head);
    }
    store_queries(layout, work, &tile, &head);
}

/* Whether tiles as tasks, 1.6 times the work, end before whole heads as tasks. */
static bool split_pays(const struct layout *layout, int64_t threads) {
    int64_t tasks = layout->B * layout->kv_heads, turns = (tasks + threads - 1) / threads;
    return tasks * tiles_of(layout) >= 2 * threads && 5 * turns * threads > 8 * tasks;
}

static void backward_split(const struct backward *pass) {
    const struct layout *layout = &pass->layout;
    int64_t tiles = tiles_of(layout), H = layout->heads, KV = layout->kv_heads;
    int64_t key_tasks = layout->B * KV * tiles, query_tasks = layout->B * H * tiles;
#pragma omp parallel num_threads(team_size())
    {
        /* Those with the most tiles first: early keys, late queries. No thread may go on to the
         * queries before all keys are done where scratch belongs to the task. */
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < key_tasks; i++) {
            const struct work work = work_for(layout, pass->scratch, i, key_tasks);
            int64_t b = i % (layout->B * KV) / KV, kv = i % KV;
            backward_key_tile(pass, &work, b, kv, i / (layout->B * KV) * TILE);
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < query_tasks; i++) {
            const struct work work = work_for(layout, pass->scratch, i, query_tasks);
            int64_t b = i % (layout->B * H) / H, h = i % H;
            backward_query_tile(pass, &work, b, h, (tiles - 1 - i / (layout->B * H)) * TILE);
        }
    }
}

void attention_backward(const struct attention_shape *shape, const struct attention_saved *saved,
                        const float *dy, float *dqkv, float *scratch) {
    struct backward pass = {.layout = layout_of(shape), .saved = saved, .dy = dy};
    int64_t KV = pass.layout.kv_heads, tasks = pass.layout.B * KV;
    pass.dqkv = dqkv;
    pass.scratch = scratch;
    if (split_pays(&pass.layout, team_size())) {
        backward_split(&pass);
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(team_size())
    for (int64_t i = 0; i < tasks; i++) {
        const struct work work = work_for(&pass.layout, scratch, i, tasks);
        backward_whole(&pass, &work, i / KV, i % KV);
    }
}
