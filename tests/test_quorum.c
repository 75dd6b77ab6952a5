/* Proves when a round of a quorum closes and with whom: by scripts of arrivals, departures and
 * moments, with the closing moment and the ranks worked out by hand; that a report counts in all
 * shards or in none; and that the grace follows median and MAD of a plain sort.
 *
 * A script is a text: "3@20" is worker 3's arrival in all shards at 20 ms, "3.1@20" in shard 1
 * alone, "-3@20" its departure, "?@20" a look: the round must not be due; "!@20=0,2,3" the round is
 * due at 20 ms, not 1 ns before that by the clock alone, and closes with these ranks. Random
 * histories then check the invariants against a plain table.
 */
#include "base/clock.h"
#include "base/random.h"
#include "server/quorum.h"
#include "tests/test.h"

#include <stdbool.h>

enum { WORKERS_MAX = 8, SHARDS = 2 };

struct script {
    const char *what;
    uint32_t workers;
    int64_t quorum, grace_ns;
    bool late_joins;
    const char *text;
};

struct play {
    struct quorum quorum;
    uint64_t seqs[WORKERS_MAX]; /* of the report that comes next */
    const char *what;
};

static void fail(const struct play *play, const char *at) {
    fprintf(stderr, "%s: failed at \"%s\"\n", play->what, at);
    exit(1);
}

static void arrive(struct play *play, uint32_t rank, int shard, int64_t now_ns, const char *at) {
    uint64_t first = shard < 0 ? 0 : (uint64_t)shard;
    uint64_t last = shard < 0 ? SHARDS - 1 : (uint64_t)shard;
    for (uint64_t s = first; s <= last; s++) {
        struct quorum_arrival arrival = {
            .round = play->quorum.round, .shard = s, .seq = play->seqs[rank] + 1, .rank = rank};
        enum status status = quorum_arrive(&play->quorum, &arrival, now_ns);
        if (status != (play->quorum.workers[rank].gone ? STATUS_STALE : STATUS_OK)) {
            fail(play, at);
        }
    }
}

static void expect_close(struct play *play, const char *ranks_text, int64_t now_ns,
                         const char *at) {
    uint32_t ranks[WORKERS_MAX];
    struct quorum *quorum = &play->quorum;
    if (!quorum_due(quorum, now_ns) || quorum_deadline_ns(quorum) == INT64_MAX) {
        fail(play, at);
    }
    uint32_t count = quorum_close(quorum, ranks);
    for (uint32_t i = 0; i < count; i++) {
        char *end = NULL;
        if (strtoul(ranks_text, &end, 10) != ranks[i] || end == ranks_text) {
            fail(play, at);
        }
        ranks_text = end + (*end == ',' ? 1 : 0);
        play->seqs[ranks[i]]++;
    }
    if (*ranks_text != ' ' && *ranks_text != 0) {
        fail(play, at);
    }
    if (quorum_due(quorum, now_ns + 1000 * CLOCK_S)) {
        fail(play, at); /* nobody is there */
    }
}

/* One word of the script. */
static void play_word(struct play *play, const char *word) {
    char *end = NULL;
    const char *moment = strchr(word, '@');
    CHECK(moment != NULL);
    int64_t now_ns = (int64_t)strtol(moment + 1, &end, 10) * CLOCK_MS;
    if (*word == '?') {
        if (quorum_due(&play->quorum, now_ns)) {
            fail(play, word);
        }
    } else if (*word == '!') {
        expect_close(play, end + 1, now_ns, word);
    } else if (*word == '-') {
        quorum_leave(&play->quorum, (uint32_t)strtoul(word + 1, NULL, 10), now_ns);
    } else {
        uint32_t rank = (uint32_t)strtoul(word, &end, 10);
        arrive(play, rank, *end == '.' ? (int)strtol(end + 1, NULL, 10) : -1, now_ns, word);
    }
}

static const struct script scripts[] = {
    {"all of all, whatever the grace", 3, 3, 50 * CLOCK_MS, false,
     "0@1 ?@2 2@3 ?@1000 1@1001 !@1001=0,1,2"},
    {"the first two of three, no grace", 3, 2, 0, false, "2@5 ?@900 0@901 !@901=0,2"},
    {"one is a quorum", 3, 1, 0, false, "1@5 !@5=1 0@6 !@6=0"},
    {"grace from when the quorum is complete", 4, 2, 50 * CLOCK_MS, false,
     "3@10 1@100 ?@149 0@149 ?@149 !@150=0,1,3"},
    {"all are there before the grace is over", 3, 2, 50 * CLOCK_MS, false,
     "0@10 1@11 ?@12 2@13 !@13=0,1,2"},
    {"an arrival counts when all shards have it", 3, 2, 0, false,
     "0@1 1.0@2 ?@3 2.1@4 ?@5 1.1@6 !@6=0,1"},
    {"a round after the other", 2, 1, 10 * CLOCK_MS, false,
     "0@0 ?@9 !@10=0 0@20 1@25 !@25=0,1 1@40 ?@49 !@50=1"},
    {"who goes is waited for no more", 3, 3, 0, false, "0@1 1@2 ?@500 -2@501 !@501=0,1"},
    {"a quorum of those that are left", 4, 3, 0, false, "0@1 -2@5 -3@6 ?@7 1@8 !@8=0,1"},
    {"who had arrived and goes does not count", 4, 2, 0, false, "0@1 -0@2 1@3 ?@4 2@5 !@5=1,2"},
    {"a quorum that is lost again", 4, 2, 50 * CLOCK_MS, false,
     "0@1 1@2 -1@10 ?@100 2@110 ?@159 !@160=0,2"},
    {"the last one that is left", 2, 2, 0, false, "-1@1 ?@2 0@3 !@3=0 0@9 !@9=0"},
    {"nobody is there, nobody is left", 2, 1, 0, false, "-0@1 -1@2 ?@1000"},
    {"who is gone may still be heard of", 3, 2, 0, false, "-1@1 1@2 0@3 ?@4 2@5 !@5=0,2"},
    /* The first round has only its own lags, 0 and 3: median 0, MAD 0, and 1 ms at least. */
    {"auto: the quorum is the latest moment at first", 3, 2, GRACE_AUTO, false,
     "0@100 ?@200 1@203 !@203=0,1"},
    {"auto: at least a millisecond", 3, 1, GRACE_AUTO, false, "0@100 ?@100 !@101=0"},
    /* Lags 0 0 | 0 0 | 0: median and MAD are 0. */
    {"auto: the median is the first ones'", 2, 1, GRACE_AUTO, false,
     "0@0 1@0 !@0=0,1 0@10 1@10 !@10=0,1 0@20 ?@20 !@21=0"},
};

static void test_scripts(void) {
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        const struct script *script = &scripts[i];
        struct play play = {.what = script->what};
        char copy[256];
        char *rest = NULL;
        (void)snprintf(copy, sizeof copy, "%s", script->text);
        quorum_init(&play.quorum, &(struct quorum_config){.quorum = script->quorum,
                                                          .grace_ns = script->grace_ns,
                                                          .late_joins = script->late_joins,
                                                          .workers = script->workers,
                                                          .shards = SHARDS,
                                                          .voters = SHARDS});
        for (char *word = strtok_r(copy, " ", &rest); word != NULL;
             word = strtok_r(NULL, " ", &rest)) {
            play_word(&play, word);
        }
        quorum_free(&play.quorum);
    }
}

/* ---- reports that are late in some shard ---- */

static enum status word(struct quorum *quorum, uint64_t round, uint64_t shard, uint32_t rank,
                        uint64_t seq) {
    const struct quorum_arrival arrival = {
        .round = round, .shard = shard, .seq = seq, .rank = rank};
    return quorum_arrive(quorum, &arrival, 0);
}

static void open_quorum(struct quorum *quorum, uint32_t workers, bool late_joins) {
    quorum_init(quorum, &(struct quorum_config){.quorum = 1,
                                                .late_joins = late_joins,
                                                .workers = workers,
                                                .shards = SHARDS,
                                                .voters = SHARDS});
}

static void close_with(struct quorum *quorum, uint32_t rank) {
    uint32_t ranks[WORKERS_MAX];
    CHECK(quorum_due(quorum, 0));
    CHECK_INT(quorum_close(quorum, ranks), 1);
    CHECK_INT(ranks[0], rank);
}

/* Worker 1's report is in shard 0 before the round is closed, and comes to shard 1 after that, when
 * round 2 is open: fresh there (a worker whose blocks are of different versions), or late. */
static void test_dead_reports(void) {
    for (int fresh = 0; fresh < 2; fresh++) {
        struct quorum quorum;
        open_quorum(&quorum, 3, false);
        CHECK_INT(word(&quorum, 1, 0, 1, 1), STATUS_OK);
        CHECK_INT(word(&quorum, 1, 0, 0, 1), STATUS_OK);
        CHECK_INT(word(&quorum, 1, 1, 0, 1), STATUS_OK);
        close_with(&quorum, 0);
        /* Now shard 0 drops it; if shard 1 holds it, that must be told. */
        CHECK_INT(word(&quorum, fresh ? 2 : 1, 1, 1, 1), fresh ? STATUS_AGAIN : STATUS_OK);
        CHECK_INT(word(&quorum, 2, 1, 1, 1), STATUS_STALE); /* nothing more of this one */
        CHECK(!quorum_due(&quorum, INT64_MAX - 1));
        /* The next report is as good as any. */
        CHECK_INT(word(&quorum, 2, 0, 1, 2), STATUS_OK);
        CHECK_INT(word(&quorum, 2, 1, 1, 2), STATUS_OK);
        close_with(&quorum, 1);
        quorum_free(&quorum);
    }
}

/* The word of a slow shard on the last report must not count for the next one. */
static void test_overtaken_words(void) {
    struct quorum quorum;
    open_quorum(&quorum, 2, false);
    CHECK_INT(word(&quorum, 1, 0, 0, 1), STATUS_OK);
    CHECK_INT(word(&quorum, 1, 1, 0, 1), STATUS_OK);
    close_with(&quorum, 0);
    CHECK_INT(word(&quorum, 1, 0, 1, 1), STATUS_OK); /* late in shard 0 */
    CHECK_INT(word(&quorum, 2, 0, 1, 2), STATUS_OK); /* worker 1's next */
    CHECK_INT(word(&quorum, 1, 1, 1, 1), STATUS_STALE);
    CHECK(!quorum_due(&quorum, 0));
    CHECK_INT(word(&quorum, 2, 1, 1, 2), STATUS_OK);
    close_with(&quorum, 1);
    quorum_free(&quorum);
}

static void test_late_joins(void) {
    struct quorum quorum;
    open_quorum(&quorum, 2, true);
    CHECK_INT(word(&quorum, 1, 0, 1, 1), STATUS_OK);
    CHECK_INT(word(&quorum, 1, 0, 0, 1), STATUS_OK);
    CHECK_INT(word(&quorum, 1, 1, 0, 1), STATUS_OK);
    close_with(&quorum, 0);
    CHECK_INT(word(&quorum, 1, 1, 1, 1), STATUS_STALE); /* sent before the shard knew */
    CHECK_INT(word(&quorum, 2, 1, 1, 1), STATUS_OK);    /* both say it again for round 2 */
    CHECK(!quorum_due(&quorum, 0));
    CHECK_INT(word(&quorum, 2, 0, 1, 1), STATUS_OK);
    close_with(&quorum, 1);
    quorum_free(&quorum);
}

static void test_wrong_words(void) {
    struct quorum quorum;
    open_quorum(&quorum, 2, false);
    CHECK_INT(word(&quorum, 2, 0, 0, 1), STATUS_MISMATCH);
    CHECK_INT(word(&quorum, 0, 0, 0, 1), STATUS_MISMATCH);
    CHECK_INT(word(&quorum, 1, SHARDS, 0, 1), STATUS_MISMATCH);
    CHECK_INT(word(&quorum, 1, UINT64_MAX, 0, 1), STATUS_MISMATCH);
    CHECK_INT(word(&quorum, 1, 0, 2, 1), STATUS_MISMATCH);
    CHECK_INT(word(&quorum, 1, 0, 0, 1), STATUS_OK);
    CHECK_INT(word(&quorum, 1, 0, 0, 1), STATUS_STALE);
    CHECK(!quorum_due(&quorum, 0)); /* twice by one shard is not both */
    quorum_free(&quorum);
}

/* ---- the grace that is measured ---- */

static void test_spread(void) {
    int64_t none[1] = {0};
    CHECK_INT(quorum_spread_ns(none, 0), CLOCK_MS);
    int64_t equal[5] = {7 * CLOCK_MS, 7 * CLOCK_MS, 7 * CLOCK_MS, 7 * CLOCK_MS, 7 * CLOCK_MS};
    CHECK_INT(quorum_spread_ns(equal, 5), 7 * CLOCK_MS);
    int64_t quick[3] = {0, 10, 20};
    CHECK_INT(quorum_spread_ns(quick, 3), CLOCK_MS);
    /* Median 30; deviations 30 20 10 0 10 20 970, sorted 0 10 10 20 20 30 970: MAD 20. */
    int64_t lags[7] = {
        1000 * CLOCK_MS, 0, 10 * CLOCK_MS, 50 * CLOCK_MS, 40 * CLOCK_MS, 20 * CLOCK_MS,
        30 * CLOCK_MS};
    CHECK_INT(quorum_spread_ns(lags, 7), 110 * CLOCK_MS);
}

/* Rounds in which workers 1 and 2 come 40 and 50 ms after worker 0; worker 3 never comes in time.
 * The lags are then 0, 40, 50 a round: the median is 40, the MAD 10, and the grace 80 ms. */
static void test_grace_auto(void) {
    struct quorum quorum;
    uint32_t ranks[WORKERS_MAX];
    int64_t now_ns = CLOCK_S;
    quorum_init(&quorum,
                &(struct quorum_config){
                    .quorum = 3, .grace_ns = GRACE_AUTO, .workers = 4, .shards = 1, .voters = 1});
    for (uint64_t round = 1; round <= 300; round++) {
        static const int64_t lags_ms[3] = {0, 40, 50};
        for (uint32_t rank = 0; rank < 3; rank++) {
            struct quorum_arrival arrival = {.round = round, .seq = round, .rank = rank};
            CHECK_INT(quorum_arrive(&quorum, &arrival, now_ns + lags_ms[rank] * CLOCK_MS),
                      STATUS_OK);
        }
        int64_t grace_ns = quorum_deadline_ns(&quorum) - now_ns;
        if (round > 3) {
            CHECK_INT(grace_ns, 80 * CLOCK_MS);
        }
        CHECK(!quorum_due(&quorum, now_ns + grace_ns - 1));
        CHECK(quorum_due(&quorum, now_ns + grace_ns));
        CHECK_INT(quorum_close(&quorum, ranks), 3);
        now_ns += CLOCK_S;
    }
    /* A late word is a lag of its own: 0.7 s after the first of round 300. */
    struct quorum_arrival late = {.round = 300, .seq = 1, .rank = 3};
    CHECK_INT(quorum_arrive(&quorum, &late, now_ns - CLOCK_S + 700 * CLOCK_MS), STATUS_OK);
    uint32_t last = (quorum.lag_next + quorum.lag_capacity - 1) % quorum.lag_capacity;
    CHECK_INT(quorum.lags[last], 700 * CLOCK_MS);
    late = (struct quorum_arrival){.round = 299, .seq = 2, .rank = 3};
    CHECK_INT(quorum_arrive(&quorum, &late, now_ns + 60 * CLOCK_S), STATUS_OK);
    last = (last + 1) % quorum.lag_capacity;
    CHECK_INT(quorum.lags[last], 10 * CLOCK_S); /* the most that counts */
    quorum_free(&quorum);
}

/* ---- random histories ---- */

/* Shards speak in random order of workers that come and go; the plain table knows which shard holds
 * which report. Whoever is in a closed round is held by all shards, and the quorum is kept. */
static void test_random_histories(void) {
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct random_stream random;
        struct quorum quorum;
        uint32_t ranks[WORKERS_MAX], living = 6;
        bool held[6][SHARDS] = {{false}}, gone[6] = {false};
        uint64_t seqs[6] = {0}, counted = 0;
        int64_t now_ns = 0;
        random_open(&random, seed, RANDOM_SIMULATOR, 0);
        int64_t needed = 1 + (int64_t)random_below(&random, 6);
        quorum_init(&quorum, &(struct quorum_config){.quorum = needed,
                                                     .grace_ns = seed % 3 == 0 ? 0 : GRACE_AUTO,
                                                     .late_joins = true,
                                                     .workers = 6,
                                                     .shards = SHARDS,
                                                     .voters = SHARDS});
        for (int step = 0; step < 400; step++) {
            uint32_t rank = (uint32_t)random_below(&random, 6);
            uint64_t shard = random_below(&random, SHARDS);
            now_ns += (int64_t)random_below(&random, 3 * CLOCK_MS);
            if (random_below(&random, 300) == 0 && living > 1 && !gone[rank]) {
                quorum_leave(&quorum, rank, now_ns);
                gone[rank] = true;
                living--;
            } else if (!held[rank][shard] && !gone[rank]) {
                struct quorum_arrival arrival = {
                    .round = quorum.round, .shard = shard, .seq = seqs[rank] + 1, .rank = rank};
                CHECK_INT(quorum_arrive(&quorum, &arrival, now_ns), STATUS_OK);
                held[rank][shard] = true;
            }
            if (!quorum_due(&quorum, now_ns)) {
                continue;
            }
            uint32_t count = quorum_close(&quorum, ranks);
            CHECK(count >= (needed < (int64_t)living ? (uint32_t)needed : living));
            for (uint32_t i = 0; i < count; i++) {
                CHECK(!gone[ranks[i]] && held[ranks[i]][0] && held[ranks[i]][1]);
                CHECK(i == 0 || ranks[i] > ranks[i - 1]);
                seqs[ranks[i]]++;
                counted++;
                held[ranks[i]][0] = held[ranks[i]][1] = false;
            }
            /* Who missed it is said again, as shards do for late reports that join. */
            for (uint32_t r = 0; r < 6; r++) {
                held[r][0] = held[r][1] = false;
            }
        }
        CHECK(counted > 20);
        quorum_free(&quorum);
    }
}

int main(void) {
    TEST_RUN(test_scripts);
    TEST_RUN(test_dead_reports);
    TEST_RUN(test_overtaken_words);
    TEST_RUN(test_late_joins);
    TEST_RUN(test_wrong_words);
    TEST_RUN(test_spread);
    TEST_RUN(test_grace_auto);
    TEST_RUN(test_random_histories);
    return 0;
}
