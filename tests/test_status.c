/* The small ground floor: statuses, assertions, log and clock.
 *
 * Proves that each status has its own text and a legal exit code, that a failed assertion ends the
 * process by SIGABRT with both values in its line (a forked child fails one), that a log line is
 * one line whatever its text holds and is dropped below the level (standard error is a file
 * meanwhile), and that the clock does not run backwards.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "tests/test.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

/* Standard error into a file from start to end; what was written comes back in text. */
struct capture {
    FILE *file;
    int saved;
};

static void capture_start(struct capture *capture) {
    capture->file = tmpfile();
    CHECK(capture->file);
    capture->saved = dup(STDERR_FILENO);
    CHECK(dup2(fileno(capture->file), STDERR_FILENO) >= 0);
}

static void capture_end(struct capture *capture, char *text, size_t bytes) {
    CHECK(dup2(capture->saved, STDERR_FILENO) >= 0);
    close(capture->saved);
    rewind(capture->file);
    text[fread(text, 1, bytes - 1, capture->file)] = 0;
    fclose(capture->file);
}

static void test_texts_and_codes(void) {
    enum status all[] = {
#define STATUS_ITEM(name, text) STATUS_##name,
        STATUS_MAP(STATUS_ITEM)
#undef STATUS_ITEM
    };
    int count = (int)(sizeof all / sizeof all[0]);
    for (int i = 0; i < count; i++) {
        CHECK_INT(all[i], i);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(status_text(all[i]), status_text(all[j])) != 0);
        CHECK((status_exit_code(all[i]) == EXIT_CODE_OK) == (all[i] == STATUS_OK));
    }
    CHECK_TEXT(status_text(STATUS_CORRUPT), "damaged or malformed data");
    CHECK_TEXT(status_text((enum status)count), "unknown status");
    CHECK_TEXT(status_text((enum status) - 1), "unknown status");
    CHECK_INT(status_exit_code(STATUS_INVALID), 2);
    CHECK_INT(status_exit_code(STATUS_MISMATCH), 78);
    CHECK_INT(status_exit_code(STATUS_DENIED), 77);
    CHECK_INT(status_exit_code(STATUS_PEER_LOST), 69);
    CHECK_INT(status_exit_code(STATUS_MEMORY), 71);
}

static enum status stop_at(enum status status, bool *passed) {
    TRY(status);
    *passed = true;
    return STATUS_OK;
}

static void test_try(void) {
    bool passed = false;
    CHECK_INT(stop_at(STATUS_STALE, &passed), STATUS_STALE);
    CHECK(!passed);
    CHECK_INT(stop_at(STATUS_OK, &passed), STATUS_OK);
    CHECK(passed);
}

static void fail_plain(void) {
    ASSERT(1 + 1 == 3);
}

static void fail_values(void) {
    int pages = 7;
    ASSERT_OP(pages, <, -3);
}

static void check_aborts(void (*function)(void), const char *expected) {
    struct capture capture;
    char text[1024];
    int state;
    capture_start(&capture);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        function();
        _exit(0);
    }
    CHECK_INT(waitpid(child, &state, 0), child);
    capture_end(&capture, text, sizeof text);
    CHECK(WIFSIGNALED(state));
    CHECK_INT(WTERMSIG(state), SIGABRT);
    CHECK(strstr(text, expected));
    CHECK(strstr(text, "test_status.c:"));
}

static void test_assert(void) {
    ASSERT(1 + 1 == 2);
    ASSERT_OP(2, >=, 2);
    check_aborts(fail_plain, "assertion failed: 1 + 1 == 3\n");
    check_aborts(fail_values, "assertion failed: pages < -3 (7 against -3)\n");
}

static void test_log_levels(void) {
    enum log_level level = LOG_WARN;
    CHECK_INT(log_level_parse("loud", &level), STATUS_INVALID);
    CHECK_INT(log_level_parse("", &level), STATUS_INVALID);
    CHECK_INT(level, LOG_WARN);
    CHECK_INT(log_level_parse("trace", &level), STATUS_OK);
    CHECK_INT(level, LOG_TRACE);
    CHECK(log_enabled(LOG_INFO) && !log_enabled(LOG_DEBUG)); /* the default */
    log_set_level(LOG_ERROR);
    CHECK(log_enabled(LOG_ERROR) && !log_enabled(LOG_WARN));
    struct capture capture;
    char text[256];
    capture_start(&capture);
    log_warn("not to be seen");
    log_error("seen %d", 42);
    capture_end(&capture, text, sizeof text);
    log_set_level(LOG_INFO);
    CHECK(!strstr(text, "not to be seen"));
    int hour, minute, second, millisecond, end = 0;
    CHECK_INT(sscanf(text, "%2d:%2d:%2d.%3d error seen 42%n", &hour, &minute, &second, &millisecond,
                     &end),
              4);
    CHECK_TEXT(text + end, "\n");
}

static void test_log_one_line(void) {
    struct capture capture;
    static char longest[5000], text[8192];
    memset(longest, 'x', sizeof longest - 1);
    capture_start(&capture);
    log_info("a%sb", "\n\x1b[31m\x7f");
    log_info("%s", longest);
    capture_end(&capture, text, sizeof text);
    char *first_end = strchr(text, '\n');
    CHECK(first_end);
    *first_end = 0;
    CHECK(strstr(text, "info a  [31m b"));
    char *second = first_end + 1, *second_end = strchr(second, '\n');
    CHECK(second_end && second_end[1] == 0);
    CHECK_INT(second_end + 1 - second, 2048);
    CHECK(memcmp(second_end - 4, "x...", 4) == 0);
}

static void test_clock(void) {
    int64_t before = clock_now_ns();
    CHECK(before > 0);
    for (int i = 0; i < 1000; i++) {
        int64_t now = clock_now_ns();
        CHECK(now >= before);
        before = now;
    }
    CHECK_INT(CLOCK_S, 1000 * CLOCK_MS);
}

int main(void) {
    TEST_RUN(test_texts_and_codes);
    TEST_RUN(test_try);
    TEST_RUN(test_assert);
    TEST_RUN(test_log_levels);
    TEST_RUN(test_log_one_line);
    TEST_RUN(test_clock);
    return 0;
}
