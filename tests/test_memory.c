/* Arenas and the allocation counter.
 *
 * Proves that an arena's pieces are aligned, zeroed, disjoint and exactly as many as arena_need()
 * promised, that one piece too many and a forbidden allocation end the process by SIGABRT (forked
 * children), that a mapping beyond the address space is MEMORY, that memory_zeroed() ends with exit
 * code 71 rather than return NULL, and, in debug builds, that each kind of allocation is counted
 * for its own thread only.
 */
#include "base/memory.h"
#include "tests/test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs the function in a child whose standard error is closed; returns the child's wait state. */
static int run_child(void (*function)(void)) {
    int state;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        function();
        _exit(0);
    }
    CHECK_INT(waitpid(child, &state, 0), child);
    return state;
}

static void test_need(void) {
    CHECK_INT(arena_need(0), 0);
    CHECK_INT(arena_need(1), 64);
    CHECK_INT(arena_need(64), 64);
    CHECK_INT(arena_need(65), 128);
}

static void test_pieces(void) {
    const size_t sizes[] = {1, 64, 65, 1000, 0, 4096, (size_t)5 << 20};
    const size_t count = sizeof sizes / sizeof sizes[0];
    uint8_t *pieces[sizeof sizes / sizeof sizes[0]];
    struct arena arena;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += arena_need(sizes[i]);
    CHECK_INT(arena_init(&arena, bytes), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        pieces[i] = arena_take(&arena, sizes[i]);
        CHECK_INT((uintptr_t)pieces[i] % MEMORY_ALIGN, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            CHECK(pieces[i][j] == 0);
        memset(pieces[i], (int)i + 1, sizes[i]);
    }
    CHECK_INT(arena.used, bytes);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < sizes[i]; j++)
            CHECK(pieces[i][j] == i + 1);
    }
    arena_free(&arena);
    arena_free(&arena); /* harmless */
    CHECK(arena.base == NULL && arena.bytes == 0);
}

static void take_too_much(void) {
    struct arena arena;
    CHECK_INT(arena_init(&arena, 128), STATUS_OK);
    (void)arena_take(&arena, 65);
    (void)arena_take(&arena, 1);
}

static void test_bounds(void) {
    struct arena arena = {0};
    CHECK_INT(arena_init(&arena, (size_t)1 << 56), STATUS_MEMORY);
    arena_free(&arena);
    int state = run_child(take_too_much);
    CHECK(WIFSIGNALED(state) && WTERMSIG(state) == SIGABRT);
}

static void want_too_much(void) {
    volatile size_t half = SIZE_MAX / 2; /* volatile: the compiler must not see what cannot be */
    free(memory_zeroed(half, 3));
}

static void test_zeroed(void) {
    for (size_t bytes = 0; bytes < 200; bytes += 13) {
        uint8_t *memory = memory_zeroed(3, bytes);
        CHECK(memory);
        CHECK_INT((uintptr_t)memory % MEMORY_ALIGN, 0);
        for (size_t i = 0; i < 3 * bytes; i++)
            CHECK(memory[i] == 0);
        memset(memory, 0xff, 3 * bytes);
        free(memory);
    }
    int state = run_child(want_too_much);
    CHECK(WIFEXITED(state));
    CHECK_INT(WEXITSTATUS(state), 71);
}

static void test_multiply(void) {
    uint64_t product = 5;
    CHECK(memory_multiply(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &product));
    CHECK(product == UINT64_MAX - UINT32_MAX);
    CHECK(memory_multiply(0, UINT64_MAX, &product) && product == 0);
    product = 5;
    CHECK(!memory_multiply(UINT64_C(1) << 32, UINT64_C(1) << 32, &product));
    CHECK(product == 5);
}

/* Pointers go through a volatile, or the compiler drops a malloc whose memory nobody uses. */
static void *volatile kept;

/* Of our build types, Debug alone leaves NDEBUG out, and it alone counts. */
#ifdef NDEBUG
static const bool counter_is_on = false;
#else
static const bool counter_is_on = true;
#endif

static void *allocate_elsewhere(void *argument) {
    uint64_t *count = argument;
    kept = malloc(10);
    free(kept);
    *count = memory_allocations();
    return NULL;
}

static void test_counter(void) {
    uint64_t before = memory_allocations();
    kept = malloc(8);
    kept = realloc(kept, 80);
    free(kept);
    kept = calloc(2, 8);
    free(kept);
    kept = aligned_alloc(64, 64);
    free(kept);
    void *aligned;
    CHECK_INT(posix_memalign(&aligned, 64, 64), 0);
    free(aligned);
    free(memory_zeroed(1, 1)); /* its malloc is in another object */
    uint64_t here = memory_allocations() - before, elsewhere = 77;
    pthread_t thread;
    before = memory_allocations();
    CHECK_INT(pthread_create(&thread, NULL, allocate_elsewhere, &elsewhere), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_INT(memory_allocations(), before);
    if (counter_is_on) {
        CHECK_INT(here, 6);
        CHECK_INT(elsewhere, 1);
    } else {
        CHECK_INT(here, 0);
        CHECK_INT(elsewhere, 0);
    }
}

static void allocate_forbidden(void) {
    memory_forbid(true);
    kept = malloc(1);
}

static void allocate_after_forbidden(void) {
    struct arena arena;
    CHECK_INT(arena_init(&arena, 64), STATUS_OK);
    memory_forbid(true);
    (void)arena_take(&arena, 64); /* no malloc */
    memory_forbid(false);
    kept = malloc(1);
}

static void test_forbid(void) {
    int state = run_child(allocate_forbidden);
    if (counter_is_on) {
        CHECK(WIFSIGNALED(state) && WTERMSIG(state) == SIGABRT);
    } else {
        CHECK(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
    state = run_child(allocate_after_forbidden);
    CHECK(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

int main(void) {
    TEST_RUN(test_need);
    TEST_RUN(test_pieces);
    TEST_RUN(test_bounds);
    TEST_RUN(test_zeroed);
    TEST_RUN(test_multiply);
    TEST_RUN(test_counter);
    TEST_RUN(test_forbid);
    return 0;
}
