/* Proves the coordinator's table of peers: names, numbers, lookups, capacity, the text that says
 * who is missing in each phase, and who is silent.
 *
 * Texts are compared whole. A random walk of joins and departures checks that the peers of a role
 * always have different numbers below their count's limit, and that a full set has all of them.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "server/membership.h"
#include "tests/test.h"

static struct peer *add(struct membership *membership, enum job_role role, uint32_t connection,
                        const char *host, uint64_t pid) {
    struct membership_newcomer newcomer = {
        .role = role, .connection = connection, .host = host, .pid = pid};
    return membership_add(membership, &newcomer);
}

static const struct job two_and_two = {.servers = 2, .workers = 2};

static void check_missing(const struct membership *membership, const struct job *job,
                          enum peer_state state, const char *expected) {
    char text[400] = "what was there before";
    membership_missing(membership, job, state, text, sizeof text);
    CHECK_TEXT(text, expected);
}

static void test_missing_while_gathering(void) {
    struct membership membership;
    membership_init(&membership, 8);
    check_missing(&membership, &two_and_two, PEER_JOINED, "2 of 2 servers, 2 of 2 workers");
    (void)add(&membership, JOB_SERVER, 1, "a", 10);
    check_missing(&membership, &two_and_two, PEER_JOINED, "1 of 2 servers, 2 of 2 workers");
    (void)add(&membership, JOB_WORKER, 2, "b", 20);
    check_missing(&membership, &two_and_two, PEER_JOINED, "1 of 2 servers, 1 of 2 workers");
    struct peer *second = add(&membership, JOB_SERVER, 3, "a", 11);
    check_missing(&membership, &two_and_two, PEER_JOINED, "1 of 2 workers");
    (void)add(&membership, JOB_WORKER, 4, "b", 21);
    check_missing(&membership, &two_and_two, PEER_JOINED, "");
    membership_remove(second);
    check_missing(&membership, &two_and_two, PEER_JOINED, "1 of 2 servers");
    /* One of one is one server, not one servers. */
    const struct job one = {.servers = 1, .workers = 1};
    struct membership empty;
    membership_init(&empty, 2);
    check_missing(&empty, &one, PEER_JOINED, "1 of 1 server, 1 of 1 worker");
    membership_free(&empty);
    membership_free(&membership);
}

static void test_missing_later(void) {
    struct membership membership;
    const struct job job = {.servers = 1, .workers = 2};
    membership_init(&membership, 8);
    struct peer *server = add(&membership, JOB_SERVER, 1, "a", 10);
    struct peer *first = add(&membership, JOB_WORKER, 2, "b", 20);
    struct peer *second = add(&membership, JOB_WORKER, 3, "c", 30);
    static const enum peer_state states[] = {PEER_READY, PEER_ARMED, PEER_CONNECTED, PEER_DONE};
    for (size_t i = 0; i < 4; i++) {
        enum peer_state state = states[i];
        check_missing(&membership, &job, state,
                      "server 0 (a:10), worker 0 (b:20), worker 1 (c:30)");
        first->state = state;
        check_missing(&membership, &job, state, "server 0 (a:10), worker 1 (c:30)");
        server->state = state;
        check_missing(&membership, &job, state, "worker 1 (c:30)");
        second->state = state;
        check_missing(&membership, &job, state, "");
        CHECK_INT(membership_count(&membership, JOB_WORKER, state), 2);
        CHECK_INT(membership_count(&membership, JOB_SERVER, state), 1);
        if (state != PEER_DONE) {
            CHECK_INT(membership_count(&membership, JOB_WORKER, states[i + 1]), 0);
        }
    }
    membership_free(&membership);
}

/* However many are missing, the text ends within its room. */
static void test_missing_is_cut(void) {
    struct membership membership;
    const struct job job = {.servers = 1, .workers = 40};
    char host[200], text[128];
    memset(host, 'h', sizeof host);
    host[sizeof host - 1] = '\0';
    membership_init(&membership, 64);
    for (uint32_t i = 0; i < 40; i++) {
        const struct peer *peer = add(&membership, JOB_WORKER, i, host, UINT64_MAX);
        CHECK(peer != NULL && strlen(peer->name) < MEMBERSHIP_NAME_MAX);
        CHECK(strstr(peer->name, ":18446744073709551615)") != NULL);
    }
    for (size_t bytes = 1; bytes <= sizeof text; bytes++) {
        memset(text, '#', sizeof text);
        membership_missing(&membership, &job, PEER_READY, text, bytes);
        CHECK(memchr(text, '\0', bytes) != NULL);
        for (size_t i = bytes; i < sizeof text; i++) {
            CHECK_INT(text[i], '#');
        }
    }
    membership_free(&membership);
}

static void test_lookups(void) {
    struct membership membership;
    membership_init(&membership, 4);
    CHECK(membership_by_connection(&membership, 0) == NULL);
    CHECK(membership_by_index(&membership, JOB_SERVER, 0) == NULL);
    struct peer *server = add(&membership, JOB_SERVER, 0, "left", 1);
    struct peer *worker = add(&membership, JOB_WORKER, 9, "right", 22);
    struct peer *other = add(&membership, JOB_WORKER, 5, "right", 23);
    CHECK_TEXT(server->name, "server 0 (left:1)");
    CHECK_TEXT(worker->name, "worker 0 (right:22)");
    CHECK_TEXT(other->name, "worker 1 (right:23)");
    CHECK_INT(worker->state, PEER_JOINED);
    CHECK(membership_by_connection(&membership, 0) == server);
    CHECK(membership_by_connection(&membership, 9) == worker);
    CHECK(membership_by_connection(&membership, 5) == other);
    CHECK(membership_by_connection(&membership, 1) == NULL);
    CHECK(membership_by_index(&membership, JOB_SERVER, 0) == server);
    CHECK(membership_by_index(&membership, JOB_WORKER, 0) == worker);
    CHECK(membership_by_index(&membership, JOB_WORKER, 1) == other);
    CHECK(membership_by_index(&membership, JOB_SERVER, 1) == NULL);
    CHECK(membership_by_index(&membership, JOB_WORKER, 2) == NULL);
    CHECK(add(&membership, JOB_WORKER, 6, "x", 1) != NULL);
    CHECK(add(&membership, JOB_WORKER, 7, "x", 1) == NULL);
    worker->addresses = memory_zeroed(1, CHANNEL_ADDRESS_MAX);
    worker->address_bytes = memory_zeroed(1, sizeof(size_t));
    membership_remove(worker); /* and its memory: ASan looks */
    CHECK(membership_by_connection(&membership, 9) == NULL);
    CHECK(membership_by_index(&membership, JOB_WORKER, 0) == NULL);
    CHECK(add(&membership, JOB_WORKER, 7, "x", 1) != NULL);
    CHECK_INT(membership_count(&membership, JOB_WORKER, PEER_JOINED), 3);
    membership_free(&membership);
}

enum { PLACES = 5 };

static uint32_t count_indices(const struct membership *membership, enum job_role role) {
    uint32_t found = 0;
    for (uint32_t index = 0; index < PLACES; index++) {
        found += membership_by_index(membership, role, index) != NULL ? 1 : 0;
    }
    return found;
}

/* The k-th of those that are there. */
static struct peer *pick(const struct membership *membership, enum job_role role, uint64_t k) {
    struct peer *peer = NULL;
    for (uint32_t index = 0; index < PLACES; index++) {
        struct peer *here = membership_by_index(membership, role, index);
        if (here != NULL && k-- == 0) {
            peer = here;
        }
    }
    CHECK(peer != NULL);
    return peer;
}

/* Peers come and go while the job gathers; numbers stay distinct, and without gaps when full. */
static void test_numbers(void) {
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct membership membership;
        struct random_stream random;
        membership_init(&membership, 16);
        random_open(&random, seed, RANDOM_SIMULATOR, 0);
        for (uint32_t step = 0; step < 200; step++) {
            enum job_role role = random_below(&random, 2) == 0 ? JOB_SERVER : JOB_WORKER;
            uint32_t count = membership_count(&membership, role, PEER_JOINED);
            if (count < PLACES && random_below(&random, 3) > 0) {
                const struct peer *peer = add(&membership, role, step, "h", 1);
                CHECK(peer != NULL && peer->index < PLACES);
                CHECK(membership_by_index(&membership, role, peer->index) == peer);
                count++;
            } else if (count > 0) {
                membership_remove(pick(&membership, role, random_below(&random, count)));
                count--;
            }
            CHECK_INT(membership_count(&membership, role, PEER_JOINED), count);
            CHECK_INT(count_indices(&membership, role), count);
        }
        membership_free(&membership);
    }
}

/* Who wishes for a place has it; who has it without having wished moves; two wishes are refused. */
static void test_wishes(void) {
    struct membership membership;
    membership_init(&membership, 8);
    struct membership_newcomer wish = {
        .role = JOB_WORKER, .connection = 7, .host = "w", .pid = 1, .place = 1};
    struct peer *first = add(&membership, JOB_WORKER, 1, "a", 10);
    CHECK_INT(first->index, 0);
    const struct peer *wisher = membership_add(&membership, &wish);
    CHECK(wisher != NULL);
    CHECK_INT(wisher->index, 0);
    CHECK_INT(first->index, 1);
    CHECK_TEXT(first->name, "worker 1 (a:10)");
    CHECK(membership_add(&membership, &wish) == NULL);
    wish.place = 4;
    CHECK_INT(membership_add(&membership, &wish)->index, 3);
    CHECK_INT(add(&membership, JOB_WORKER, 2, "b", 11)->index, 2);
    wish.role = JOB_SERVER;
    CHECK_INT(membership_add(&membership, &wish)->index, 3);
    membership_free(&membership);
}

static void test_silent(void) {
    struct membership membership;
    membership_init(&membership, 4);
    CHECK(membership_silent(&membership, CLOCK_S, 100 * CLOCK_S) == NULL);
    struct peer *server = add(&membership, JOB_SERVER, 1, "a", 10);
    struct peer *worker = add(&membership, JOB_WORKER, 2, "b", 20);
    server->heard_ns = 10 * CLOCK_S;
    worker->heard_ns = 12 * CLOCK_S;
    CHECK(membership_silent(&membership, 5 * CLOCK_S, 12 * CLOCK_S) == NULL);
    CHECK(membership_silent(&membership, 5 * CLOCK_S, 15 * CLOCK_S) == NULL);
    CHECK(membership_silent(&membership, 5 * CLOCK_S, 15 * CLOCK_S + 1) == server);
    server->heard_ns = 15 * CLOCK_S;
    CHECK(membership_silent(&membership, 5 * CLOCK_S, 17 * CLOCK_S + 1) == worker);
    membership_remove(worker);
    CHECK(membership_silent(&membership, 5 * CLOCK_S, 17 * CLOCK_S + 1) == NULL);
    membership_free(&membership);
}

int main(void) {
    TEST_RUN(test_missing_while_gathering);
    TEST_RUN(test_missing_later);
    TEST_RUN(test_missing_is_cut);
    TEST_RUN(test_lookups);
    TEST_RUN(test_numbers);
    TEST_RUN(test_wishes);
    TEST_RUN(test_silent);
    return 0;
}
