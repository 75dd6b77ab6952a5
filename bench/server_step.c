#include "bench/server_step.h"

#include "base/assert.h"
#include "bench/cpu_time.h"
#include "bench/median.h"
#include "kernels/dispatch.h"
#include "kernels/optimizer_state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, COLS = 512, COUNT = ROWS * COLS, TYPES = 3 };
enum { COPY, PASS, PASS_HALVES, ADAMW, THINGS = ADAMW + TYPES };

static const char *const names[THINGS] = {"memcpy",    "28 B pass",  "20 B pass",
                                          "adamw f32", "adamw bf16", "adamw int8"};

/* The pass over the same bytes, or over AdamW's in f32. */
static int pass_of(int thing) {
    return thing == ADAMW + MOMENT_BF16 ? PASS_HALVES : PASS;
}

struct turns {
    pthread_t thread;
    pthread_barrier_t *barrier;
    int64_t blocks, count;
    double *seconds[THINGS]; /* [count] */
};

struct block {
    float *weights, *grad, *copy;
    void *state[TYPES];
};

static struct optimizer adamw(enum moment_type type) {
    return (struct optimizer){
        .kind = OPTIMIZER_ADAMW, .moments = type, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F};
}

static const struct optimizer_piece piece = {ROWS, COLS, true};

static struct block *lay_out(struct arena *arena, int64_t blocks) {
    struct block *list = memory_zeroed((size_t)blocks, sizeof *list);
    size_t bytes = (size_t)3 * COUNT * sizeof(float);
    for (int type = 0; type < TYPES; type++) {
        const struct optimizer optimizer = adamw((enum moment_type)type);
        bytes += optimizer_state_bytes(&optimizer, &piece);
    }
    ASSERT(arena_init(arena, (size_t)blocks * bytes) == STATUS_OK);
    for (int64_t b = 0; b < blocks; b++) {
        list[b].weights = arena_take(arena, COUNT * sizeof(float));
        list[b].grad = arena_take(arena, COUNT * sizeof(float));
        list[b].copy = arena_take(arena, COUNT * sizeof(float));
        for (int type = 0; type < TYPES; type++) {
            const struct optimizer optimizer = adamw((enum moment_type)type);
            size_t state = optimizer_state_bytes(&optimizer, &piece);
            list[b].state[type] = memset(arena_take(arena, state), 0, state);
        }
        for (int i = 0; i < COUNT; i++) {
            list[b].weights[i] = 0.01F * (float)(i % 201) - 1.0F;
            list[b].grad[i] = 0.001F * (float)(i % 503) - 0.25F;
        }
    }
    return list;
}

/* What AdamW reads and writes, with next to no arithmetic; `nothing` is 0, which the compiler does
 * not know. */
KERNEL_CLONES static void pass(float *restrict weights, float *restrict m, float *restrict v,
                               const float *restrict grad, float nothing) {
    for (int i = 0; i < COUNT; i++) {
        float g = nothing * grad[i];
        weights[i] += g;
        m[i] += g;
        v[i] += g;
    }
}

/* The same with moments of two bytes. */
KERNEL_CLONES static void pass_halves(float *restrict weights, uint16_t *restrict m,
                                      uint16_t *restrict v, const float *restrict grad,
                                      float nothing) {
    uint16_t none = (uint16_t)nothing;
    for (int i = 0; i < COUNT; i++) {
        weights[i] += nothing * grad[i];
        m[i] = (uint16_t)(m[i] + none);
        v[i] = (uint16_t)(v[i] + none);
    }
}

static void do_block(const struct block *block, int thing, int64_t step) {
    static volatile float nothing = 0;
    float *m = block->state[MOMENT_F32];
    uint16_t *half = block->state[MOMENT_BF16];
    if (thing == COPY) {
        memcpy(block->copy, block->grad, COUNT * sizeof(float));
        __asm__ volatile("" : : "r"(block->copy) : "memory"); /* not to be left out */
    } else if (thing == PASS) {
        pass(block->weights, m, m + COUNT, block->grad, nothing);
    } else if (thing == PASS_HALVES) {
        pass_halves(block->weights, half, half + COUNT, block->grad, nothing);
    } else {
        const struct optimizer optimizer = adamw((enum moment_type)(thing - ADAMW));
        const struct optimizer_update update = {1e-3F, 0.1F, 1.0F, step};
        optimizer_step(&optimizer, &update, &piece, block->weights, block->state[thing - ADAMW],
                       block->grad, NULL);
    }
}

static void *run(void *argument) {
    const struct turns *turns = argument;
    struct arena arena;
    struct block *blocks = lay_out(&arena, turns->blocks);
    for (int64_t turn = -1; turn < turns->count; turn++) { /* the first is not counted */
        for (int thing = 0; thing < THINGS; thing++) {
            (void)pthread_barrier_wait(turns->barrier);
            double start = cpu_seconds();
            for (int64_t b = 0; b < turns->blocks; b++) {
                do_block(&blocks[b], thing, turn + 2);
            }
            turns->seconds[thing][turn < 0 ? 0 : turn] = cpu_seconds() - start;
        }
    }
    arena_free(&arena);
    free(blocks);
    return NULL;
}

/* The threads' times of a turn become their mean, in the first one's. */
static void print_table(const struct turns *turns, int64_t threads) {
    size_t count = (size_t)turns->count;
    double *ratios = memory_zeroed(count, sizeof *ratios);
    double values = (double)(turns->blocks * COUNT);
    static const double bytes[THINGS] = {8, 28, 20, 28, 20, 16 + 4.0 / 128};
    for (int thing = 0; thing < THINGS; thing++) {
        for (size_t i = 0; i < count; i++) {
            for (int64_t t = 1; t < threads; t++) {
                turns->seconds[thing][i] += turns[t].seconds[thing][i];
            }
            turns->seconds[thing][i] /= (double)threads;
        }
    }
    for (int thing = 0; thing < THINGS; thing++) {
        for (size_t i = 0; i < count; i++) {
            ratios[i] = turns->seconds[pass_of(thing)][i] / turns->seconds[thing][i];
        }
        double ratio = median(ratios, count);
        for (size_t i = 0; i < count; i++) {
            ratios[i] = turns->seconds[ADAMW][i] / turns->seconds[thing][i];
        }
        double of_f32 = median(ratios, count);
        for (size_t i = 0; i < count; i++) {
            ratios[i] = turns->seconds[thing][i];
        }
        double seconds = median(ratios, count);
        printf("%2lld  %-11s %6.2f ns a value %7.1f GB/s", (long long)threads, names[thing],
               seconds / values * 1e9, bytes[thing] * values / seconds / 1e9);
        printf(thing >= ADAMW ? ", %.2f of the %s" : "", ratio, names[pass_of(thing)]);
        printf(thing > ADAMW ? ", %.2f of f32" : "", of_f32);
        printf("\n");
    }
    free(ratios);
}

void server_step_measure(int64_t values, int64_t turns, int64_t threads) {
    struct turns *all = memory_zeroed((size_t)threads, sizeof *all);
    pthread_barrier_t barrier;
    ASSERT(pthread_barrier_init(&barrier, NULL, (unsigned)threads) == 0);
    for (int64_t t = 0; t < threads; t++) {
        all[t] = (struct turns){.barrier = &barrier, .blocks = values / COUNT, .count = turns};
        for (int thing = 0; thing < THINGS; thing++) {
            all[t].seconds[thing] = memory_zeroed((size_t)turns, sizeof(double));
        }
        ASSERT(pthread_create(&all[t].thread, NULL, run, &all[t]) == 0);
    }
    for (int64_t t = 0; t < threads; t++) {
        (void)pthread_join(all[t].thread, NULL);
    }
    print_table(all, threads);
    for (int64_t t = 0; t < threads; t++) {
        for (int thing = 0; thing < THINGS; thing++) {
            free(all[t].seconds[thing]);
        }
    }
    (void)pthread_barrier_destroy(&barrier);
    free(all);
}

void server_step_open(struct server_step *steps, int64_t values) {
    *steps = (struct server_step){.count = values / COUNT, .step = 1};
    steps->blocks = lay_out(&steps->arena, steps->count);
}

double server_step_make(struct server_step *steps) {
    double start = cpu_seconds();
    for (int64_t b = 0; b < steps->count; b++) {
        do_block(&steps->blocks[b], ADAMW, steps->step);
    }
    steps->step++;
    return cpu_seconds() - start;
}

void server_step_close(struct server_step *steps) {
    arena_free(&steps->arena);
    free(steps->blocks);
}
