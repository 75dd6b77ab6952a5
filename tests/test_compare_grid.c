/* Proves how `rubato compare` takes its lists apart and makes its grid, with a made-up option: what
 * is legal are names with arguments, of which some hold commas, and one reads both ways. Each is
 * compared with the values that its author meant; the grid with every combination, written down by
 * counting; folder names must be different for different arms, and hold harmless letters only.
 */
#include "base/log.h"
#include "tests/test.h"
#include "tools/compare_grid.h"

#include <stdbool.h>

/* a | b | c[:ARGUMENTS] with arguments 1, x, e+z, a, separated by commas. */
static bool check(const char *text, char *why, size_t why_bytes) {
    static const char *const whole[] = {"a", "b", "c", "c:1", "c:1,x", "c:x,e+z", "c:1,a"};
    (void)snprintf(why, why_bytes, "a, b, c");
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        if (strcmp(text, whole[i]) == 0) return true;
    }
    return false;
}

/* The list's values with a blank between them -> text. */
static void join(const struct compare_list *list, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < list->count; i++) {
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? " " : "", list->values[i]);
    }
}

static void lists_are_taken_apart(void) {
    static const struct {
        const char *text, *values;
    } cases[] = {
        {"a", "a"},
        {"a,b", "a b"},
        {"b,a,b", "b a"},
        {"a,c:1,x,b", "a c:1,x b"},
        {"c:x,e+z", "c:x,e+z"},
        {"c:1,x", "c:1,x"},
        {"c:1,a", "c:1,a"}, /* as a whole it is legal */
        {"b,c:1,a", "b c:1 a"},
        {"c:1;a", "c:1 a"},
        {"c:1,a;b", "c:1,a b"},
        {"c:1,a;", "c:1,a"},
        {"a;b,c:1,x", "a b c:1,x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct compare_list list = {0};
        char values[1024];
        CHECK_INT(compare_list_add(&list, "push", check, cases[i].text), STATUS_OK);
        join(&list, values, sizeof values);
        CHECK_TEXT(values, cases[i].values);
    }
}

static void wrong_values_are_refused(void) {
    static const char *const bad[] = {"", "d", "a,d", "x,a", ";a", "a;;b", "a,", "c:1,x,x", "a, b"};
    char wide[5000];
    struct compare_list list = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct compare_list fresh = {0};
        CHECK_INT(compare_list_add(&fresh, "push", check, bad[i]), STATUS_INVALID);
    }
    memset(wide, 'a', sizeof wide);
    wide[sizeof wide - 1] = '\0';
    CHECK_INT(compare_list_add(&list, "push", NULL, wide), STATUS_INVALID);
    wide[600] = '\0';
    CHECK_INT(compare_list_add(&list, "push", check, wide), STATUS_INVALID);
    wide[100] = ','; /* a piece that goes on with the one before, and does not fit */
    CHECK_INT(compare_list_add(&list, "push", check, wide), STATUS_INVALID);
    for (size_t i = 0; i < COMPARE_LIST_MAX; i++) {
        char value[16];
        (void)snprintf(value, sizeof value, "v%zu", i);
        CHECK_INT(compare_list_add(&list, "push", NULL, value), STATUS_OK);
    }
    CHECK_INT(compare_list_add(&list, "push", NULL, "v1"), STATUS_OK);
    CHECK_INT(compare_list_add(&list, "push", NULL, "more"), STATUS_INVALID);
}

static void add(struct compare_list *lists, enum compare_axis axis, const char *text) {
    CHECK_INT(compare_list_add(&lists[axis], compare_axis_names[axis], NULL, text), STATUS_OK);
}

static void the_grid_has_every_combination(void) {
    static struct compare_list lists[COMPARE_AXES];
    struct compare_arm *arms = NULL;
    size_t count = 0;
    add(lists, COMPARE_PUSH, "a,b,c:1");
    add(lists, COMPARE_PULL, "p");
    add(lists, COMPARE_MODE, "m:1,m-1");
    add(lists, COMPARE_LINK, "none,slow");
    CHECK_INT(compare_grid_arms(lists, &arms, &count), STATUS_OK);
    CHECK_INT(count, 12);
    for (size_t i = 0; i < count; i++) {
        CHECK_TEXT(arms[i].axis[COMPARE_LINK], i % 2 == 0 ? "none" : "slow");
        CHECK_TEXT(arms[i].axis[COMPARE_PUSH], lists[COMPARE_PUSH].values[i / 2 % 3]);
        CHECK_TEXT(arms[i].axis[COMPARE_PULL], "p");
        CHECK_TEXT(arms[i].axis[COMPARE_MODE], lists[COMPARE_MODE].values[i / 6]);
        CHECK_INT(arms[i].group, i / 2);
        CHECK_INT(arms[i].link, i % 2);
        CHECK(strspn(arms[i].name, "abcdefghijklmnopqrstuvwxyz0123456789._-=+") ==
              strlen(arms[i].name));
        for (size_t j = 0; j < i; j++) {
            CHECK(strcmp(arms[i].name, arms[j].name) != 0);
            CHECK(strcmp(arms[i].label, arms[j].label) != 0);
        }
    }
    CHECK_TEXT(arms[0].label, "a m:1 link=none"); /* pull is the same in all */
    free(arms);
}

static void one_arm_has_a_label_and_many_are_refused(void) {
    static struct compare_list one[COMPARE_AXES], many[COMPARE_AXES];
    struct compare_arm *arms = NULL;
    size_t count = 0;
    for (enum compare_axis axis = 0; axis < COMPARE_AXES; axis++) {
        add(one, axis, "v");
        for (int i = 0; i < 6; i++) {
            char value[8];
            (void)snprintf(value, sizeof value, "v%d", i);
            add(many, axis, value);
        }
    }
    CHECK_INT(compare_grid_arms(one, &arms, &count), STATUS_OK);
    CHECK_INT(count, 1);
    CHECK_TEXT(arms[0].label, "v");
    free(arms);
    CHECK_INT(compare_grid_arms(many, &arms, &count), STATUS_INVALID); /* 6^4 > 1024 */
}

int main(void) {
    TEST_RUN(lists_are_taken_apart);
    TEST_RUN(wrong_values_are_refused);
    TEST_RUN(the_grid_has_every_combination);
    TEST_RUN(one_arm_has_a_label_and_many_are_refused);
    return 0;
}
