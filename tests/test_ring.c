/* The ring between two threads, and the bell that wakes the one that sleeps.
 *
 * One thread: full and empty are where they should be, order holds, and indices may wrap around
 * 2^32. Two threads: each of a million numbered items arrives once, whole and in order, through a
 * ring of 8; the build with the thread sanitizer proves that no access races. The wake: no signal
 * given before the wait is lost (the wait would end only by the test's time limit), and a wait
 * without a signal ends.
 */
#include "base/clock.h"
#include "base/ring.h"
#include "base/wake.h"
#include "tests/test.h"

#include <pthread.h>
#include <sched.h>

struct item {
    uint64_t number;
    uint64_t check;
    char tail[5]; /* an item need not be a power of two of bytes */
};

static struct item item_of(uint64_t number) {
    struct item item = {.number = number, .check = ~number * 31};
    memset(item.tail, (int)(number & 0x7f), sizeof item.tail);
    return item;
}

static void check_item(const struct item *item, uint64_t number) {
    struct item expected = item_of(number);
    CHECK_INT(item->number, number);
    CHECK(item->check == expected.check);
    CHECK(memcmp(item->tail, expected.tail, sizeof item->tail) == 0);
}

static void test_full_and_empty(void) {
    struct ring ring;
    struct item item;
    CHECK_INT(ring_init(&ring, sizeof item, 5), STATUS_OK);
    CHECK_INT(ring.capacity, 8);
    /* Indices start just below the wrap, which otherwise takes 2^32 items to reach. */
    atomic_store(&ring.head, UINT32_MAX - 2);
    atomic_store(&ring.tail, UINT32_MAX - 2);
    uint64_t pushed = 0, popped = 0;
    for (int lap = 0; lap < 10; lap++) {
        CHECK_INT(ring_count(&ring), 0);
        CHECK_INT(ring_pop(&ring, &item), STATUS_AGAIN);
        for (int i = 0; i < 8; i++) {
            item = item_of(pushed++);
            CHECK_INT(ring_push(&ring, &item), STATUS_OK);
        }
        CHECK_INT(ring_count(&ring), 8);
        item = item_of(12345);
        CHECK_INT(ring_push(&ring, &item), STATUS_AGAIN);
        for (int i = 0; i < 8; i++) {
            CHECK_INT(ring_pop(&ring, &item), STATUS_OK);
            check_item(&item, popped++);
        }
    }
    ring_free(&ring);
}

static void test_one_slot(void) {
    struct ring ring;
    uint8_t byte = 9;
    CHECK_INT(ring_init(&ring, 1, 1), STATUS_OK);
    CHECK_INT(ring_push(&ring, &byte), STATUS_OK);
    CHECK_INT(ring_push(&ring, &byte), STATUS_AGAIN);
    byte = 0;
    CHECK_INT(ring_pop(&ring, &byte), STATUS_OK);
    CHECK_INT(byte, 9);
    ring_free(&ring);
    CHECK_INT(ring_init(&ring, SIZE_MAX / 2, 4), STATUS_MEMORY);
}

#define STREAM_ITEMS 1000000

static void *produce(void *argument) {
    struct ring *ring = argument;
    for (uint64_t i = 0; i < STREAM_ITEMS; i++) {
        struct item item = item_of(i);
        while (ring_push(ring, &item) == STATUS_AGAIN)
            sched_yield();
    }
    return NULL;
}

static void test_two_threads(void) {
    struct ring ring;
    pthread_t producer;
    CHECK_INT(ring_init(&ring, sizeof(struct item), 8), STATUS_OK);
    CHECK_INT(pthread_create(&producer, NULL, produce, &ring), 0);
    for (uint64_t i = 0; i < STREAM_ITEMS; i++) {
        struct item item;
        while (ring_pop(&ring, &item) == STATUS_AGAIN)
            sched_yield();
        check_item(&item, i);
        CHECK(ring_count(&ring) <= 8);
    }
    CHECK_INT(pthread_join(producer, NULL), 0);
    CHECK_INT(ring_count(&ring), 0);
    ring_free(&ring);
}

#define BELL_ITEMS 20000

struct bell {
    struct ring ring;
    struct wake wake;
};

static void *produce_and_ring(void *argument) {
    struct bell *bell = argument;
    for (uint64_t i = 0; i < BELL_ITEMS; i++) {
        while (ring_push(&bell->ring, &i) == STATUS_AGAIN)
            sched_yield();
        wake_signal(&bell->wake);
    }
    return NULL;
}

/* The consumer sleeps for an hour whenever the ring is empty: one lost signal would leave it so. */
static void test_wake_loses_nothing(void) {
    struct bell bell;
    pthread_t producer;
    CHECK_INT(ring_init(&bell.ring, sizeof(uint64_t), 4), STATUS_OK);
    CHECK_INT(wake_init(&bell.wake), STATUS_OK);
    CHECK_INT(pthread_create(&producer, NULL, produce_and_ring, &bell), 0);
    const int fds[2] = {-1, bell.wake.fd};
    uint64_t expected = 0;
    while (expected < BELL_ITEMS) {
        uint64_t item;
        wake_wait(fds, 2, 3600 * CLOCK_S);
        wake_clear(&bell.wake);
        while (ring_pop(&bell.ring, &item) == STATUS_OK) {
            CHECK_INT(item, expected);
            expected++;
        }
    }
    CHECK_INT(pthread_join(producer, NULL), 0);
    wake_free(&bell.wake);
    CHECK_INT(bell.wake.fd, -1);
    ring_free(&bell.ring);
}

static void test_wake_timeout(void) {
    struct wake wake;
    CHECK_INT(wake_init(&wake), STATUS_OK);
    wake_clear(&wake); /* nothing pending: must not block */
    int64_t before = clock_now_ns();
    wake_wait(&wake.fd, 1, 2 * CLOCK_MS);
    CHECK(clock_now_ns() - before >= 2 * CLOCK_MS); /* never early; how late is the system's */
    wake_wait(&wake.fd, 1, 0);
    wake_wait(NULL, 0, 1);
    for (int i = 0; i < 3; i++)
        wake_signal(&wake);
    wake_wait(&wake.fd, 1, 3600 * CLOCK_S);
    wake_clear(&wake); /* all three at once */
    wake_wait(&wake.fd, 1, CLOCK_MS);
    wake_free(&wake);
}

int main(void) {
    TEST_RUN(test_full_and_empty);
    TEST_RUN(test_one_slot);
    TEST_RUN(test_two_threads);
    TEST_RUN(test_wake_loses_nothing);
    TEST_RUN(test_wake_timeout);
    return 0;
}
