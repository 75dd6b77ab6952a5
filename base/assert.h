/* assert.h - ASSERT: checks of the program's own logic, on in every build.
 *
 * Never for what a peer, a file or a user did: that is an enum status.
 * ASSERT_OP prints both values, so that a report from the field says more than the line.
 */
#ifndef RUBATO_BASE_ASSERT_H
#define RUBATO_BASE_ASSERT_H

#include <stdint.h>

/* Prints one line and aborts. An attribute, since C++ (nvcc) has no _Noreturn. Any thread. */
__attribute__((noreturn)) void assert_fail(const char *file, int line, const char *text);
__attribute__((noreturn)) void assert_fail_values(const char *file, int line, const char *text,
                                                  int64_t left, int64_t right);

#define ASSERT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) assert_fail(__FILE__, __LINE__, #condition);                             \
    } while (0)

#define ASSERT_OP(left, op, right)                                                                 \
    do {                                                                                           \
        int64_t assert_left_ = (int64_t)(left), assert_right_ = (int64_t)(right);                  \
        if (!(assert_left_ op assert_right_))                                                      \
            assert_fail_values(__FILE__, __LINE__, #left " " #op " " #right, assert_left_,         \
                               assert_right_);                                                     \
    } while (0)

#endif
