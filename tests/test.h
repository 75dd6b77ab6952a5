/* test.h - the test harness: CHECK and friends, and one process a test file.
 *
 * A failed check prints file, line and both values and ends the process with 1. TEST_SKIP ends it
 * with 77. A test file is a main() that calls its cases through TEST_RUN.
 */
#ifndef RUBATO_TESTS_TEST_H
#define RUBATO_TESTS_TEST_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_INT(actual, expected)                                                                \
    do {                                                                                           \
        long long check_a_ = (long long)(actual), check_e_ = (long long)(expected);                \
        if (check_a_ != check_e_) {                                                                \
            fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", __FILE__, __LINE__, #actual,     \
                    check_a_, check_e_);                                                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_NEAR(actual, expected, tolerance)                                                    \
    do {                                                                                           \
        double check_a_ = (double)(actual), check_e_ = (double)(expected);                         \
        if (!(fabs(check_a_ - check_e_) <= (double)(tolerance))) {                                 \
            fprintf(stderr, "%s:%d: %s is %.9g, expected %.9g within %.3g\n", __FILE__, __LINE__,  \
                    #actual, check_a_, check_e_, (double)(tolerance));                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_TEXT(actual, expected)                                                               \
    do {                                                                                           \
        const char *check_a_ = (actual), *check_e_ = (expected);                                   \
        if (strcmp(check_a_, check_e_) != 0) {                                                     \
            fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #actual, \
                    check_a_, check_e_);                                                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define TEST_RUN(function)                                                                         \
    do {                                                                                           \
        printf("%s\n", #function);                                                                 \
        fflush(stdout);                                                                            \
        function();                                                                                \
    } while (0)

#define TEST_SKIP(reason)                                                                          \
    do {                                                                                           \
        printf("skipped: %s\n", reason);                                                           \
        exit(77);                                                                                  \
    } while (0)

#endif
