/* The JSON reader against texts written by hand from RFC 8259: what they mean, what is refused and
 * with which reason, numbers at the edges of 64 bits and of a double, every escape, every kind of
 * text that is not UTF-8. Bounds: nesting and nodes are refused one beyond the limit. Each proper
 * prefix of a text must be refused, and 20,000 seeded changes of one must not crash (texts are
 * copied to memory of their exact size, so that a sanitizer sees a read behind it).
 */
#include "base/json_read.h"
#include "base/random.h"
#include "tests/test.h"

#define LIMIT 100u

static char reason[256];

/* Parses a copy of text [bytes] -> its memory, free() it; NULL when refused, then see `reason`. */
static char *parse(struct json_tree *tree, const char *text, size_t bytes, uint32_t limit) {
    char *copy = malloc(bytes == 0 ? 1 : bytes);
    CHECK(copy != NULL);
    memcpy(copy, text, bytes);
    enum status status = json_read_parse(tree, copy, bytes, limit, reason, sizeof reason);
    if (status == STATUS_OK) return copy;
    CHECK_INT(status, STATUS_CORRUPT);
    free(copy);
    return NULL;
}

static void test_tree(void) {
    static const char text[] =
        " {\"a\" : [1, -2.5e1,\n[] ,{}], \"b\":{\"c\":null,\"d\":true,\"e\":false},\"\":\"t\"} ";
    struct json_tree tree;
    int64_t whole = 0;
    double real = 0;
    char *copy = parse(&tree, text, strlen(text), LIMIT);
    CHECK(copy != NULL);
    const struct json_node *nodes = tree.nodes;
    CHECK_INT(nodes[0].kind, JSON_OBJECT);
    CHECK_INT(nodes[0].length, 3);
    CHECK_INT(nodes[0].begin, 1);
    CHECK_INT(nodes[0].end, strlen(text) - 1);
    CHECK_INT(nodes[0].next, tree.count);
    uint32_t a = json_read_member(&tree, 0, "a"), b = json_read_member(&tree, 0, "b");
    CHECK_INT(nodes[a].kind, JSON_ARRAY);
    CHECK_INT(nodes[a].length, 4);
    CHECK(json_read_int(&tree, a + 1, &whole) && whole == 1);
    CHECK(!json_read_int(&tree, a + 2, &whole) && whole == 1);
    CHECK(json_read_real(&tree, a + 2, &real) && real == -25);
    CHECK_INT(nodes[a + 3].length, 0);
    CHECK_INT(nodes[a + 4].kind, JSON_OBJECT);
    CHECK_INT(nodes[a].next, b - 1);
    CHECK_INT(nodes[json_read_member(&tree, b, "c")].kind, JSON_NULL);
    CHECK_INT(nodes[json_read_member(&tree, b, "d")].kind, JSON_TRUE);
    CHECK_INT(nodes[json_read_member(&tree, b, "e")].kind, JSON_FALSE);
    CHECK_TEXT(json_read_text(&tree, json_read_member(&tree, 0, "")), "t");
    CHECK(json_read_member(&tree, 0, "c") == JSON_NONE);
    CHECK(json_read_member(&tree, a, "a") == JSON_NONE);
    json_read_free(&tree);
    free(copy);
}

static void test_texts(void) {
    static const struct {
        const char *json, *means;
    } cases[] = {
        {"\"\"", ""},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\u0041\\u00e9\\u20ac\\ud83d\\uDE00x\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80x"},
        {"\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json_tree tree;
        char *copy = parse(&tree, cases[i].json, strlen(cases[i].json), LIMIT);
        CHECK(copy != NULL);
        CHECK_TEXT(json_read_text(&tree, 0), cases[i].means);
        CHECK_INT(tree.nodes[0].length, strlen(cases[i].means));
        json_read_free(&tree);
        free(copy);
    }
}

static void test_numbers(void) {
    static const struct {
        const char *json;
        bool whole, real;
        int64_t whole_value;
        double real_value;
    } cases[] = {
        {"0", true, true, 0, 0},
        {"-0", true, true, 0, 0},
        {"9223372036854775807", true, true, INT64_MAX, 0x1p63},
        {"-9223372036854775808", true, true, INT64_MIN, -0x1p63},
        {"9223372036854775808", false, true, 0, 0x1p63},
        {"99999999999999999999", false, true, 0, 1e20},
        {"1e-05", false, true, 0, 1e-5},
        {"1.0", false, true, 0, 1},
        {"2E+2", false, true, 0, 200},
        {"1e309", false, false, 0, 0},
        {"true", false, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json_tree tree;
        int64_t whole = 0;
        double real = 0;
        char *copy = parse(&tree, cases[i].json, strlen(cases[i].json), LIMIT);
        CHECK(copy != NULL);
        CHECK_INT(json_read_int(&tree, 0, &whole), cases[i].whole);
        CHECK_INT(json_read_real(&tree, 0, &real), cases[i].real);
        CHECK_INT(whole, cases[i].whole_value);
        CHECK(real == cases[i].real_value);
        json_read_free(&tree);
        free(copy);
    }
}

static void test_refused(void) {
    static const struct {
        const char *json, *why;
    } cases[] = {
        {"", "no JSON value"},
        {"{\"a\":1,\"a\":2}", "the key \"a\" twice"},
        {"{\"a\":1,\"\\u0061\":2}", "the key \"a\" twice"},
        {"[{\"a\":1,\"b\":2,\"c\":3,\"b\":{}}]", "the key \"b\" twice"},
        {"[1 2]", "no comma"},
        {"[1,]", "no JSON value"},
        {"{\"a\":1,}", "no key"},
        {"{a:1}", "no key"},
        {"{\"a\" 1}", "no colon"},
        {"{} {}", "something behind"},
        {"\xef\xbb\xbf{}", "no JSON value"},
        {"nul", "no JSON value"},
        {"NaN", "no JSON value"},
        {"-Infinity", "no JSON number"},
        {"01", "no JSON number"},
        {"-", "no JSON number"},
        {".5", "no JSON value"},
        {"1.", "no JSON number"},
        {"1e", "no JSON number"},
        {"+1", "no JSON value"},
        {"'a'", "no JSON value"},
        {"\"\n\"", "a control character"},
        {"\"\\x\"", "an unknown escape"},
        {"\"\\u12g4\"", "hexadecimal"},
        {"\"\\u0000\"", "\\u0000"},
        {"\"\\ud800\"", "surrogates"},
        {"\"\\ud800\\u0041\"", "surrogates"},
        {"\"\\udc00\"", "surrogates"},
        {"\"\x80\"", "not UTF-8"},
        {"\"\xc0\xaf\"", "not UTF-8"},
        {"\"\xe0\x80\x80\"", "not UTF-8"},
        {"\"\xed\xa0\x80\"", "not UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "not UTF-8"},
        {"\"\xf8\x88\x80\x80\x80\"", "not UTF-8"},
        {"\"\xc3", "not UTF-8"},
        {"\"a", "without end"},
        {"[// note\n1]", "no JSON value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json_tree tree;
        CHECK(parse(&tree, cases[i].json, strlen(cases[i].json), LIMIT) == NULL);
        if (strstr(reason, cases[i].why) == NULL)
            fprintf(stderr, "%s: %s\n", cases[i].json, reason);
        CHECK(strstr(reason, cases[i].why) != NULL);
        CHECK(strstr(reason, ", at byte ") != NULL);
    }
    struct json_tree tree;
    CHECK(parse(&tree, "\"a\0b\"", 5, LIMIT) == NULL);
}

static void test_limits(void) {
    char text[2 * JSON_DEPTH_MAX + 2];
    struct json_tree tree;
    for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        char *copy = parse(&tree, text, 2 * (size_t)depth, LIMIT);
        CHECK((copy != NULL) == (depth == JSON_DEPTH_MAX));
        if (copy == NULL) break;
        json_read_free(&tree);
        free(copy);
    }
    CHECK(strstr(reason, "nested too deep") != NULL);
    char *copy = parse(&tree, "[1,2,3]", 7, 4);
    CHECK(copy != NULL);
    json_read_free(&tree);
    free(copy);
    CHECK(parse(&tree, "[1,2,3]", 7, 3) == NULL);
    CHECK(strstr(reason, "more than 3 values") != NULL);
}

static void test_changes(void) {
    static const char text[] =
        "{\"a\":[1,-2.5e1,\"\\u00e9\\ud83d\\ude00\",{\"b\":null}],\"c\":\"\xc3\xa9\"}";
    static const char signs[] = "{}[],:\"\\u0129.eE+-ntf \x80\xc3\xff";
    size_t bytes = strlen(text);
    struct json_tree tree;
    struct random_stream stream;
    for (size_t prefix = 0; prefix < bytes; prefix++)
        CHECK(parse(&tree, text, prefix, LIMIT) == NULL);
    random_open(&stream, 7, RANDOM_SIMULATOR, 0);
    for (int round = 0; round < 20000; round++) {
        char changed[sizeof text];
        memcpy(changed, text, sizeof text);
        for (uint64_t change = random_below(&stream, 4) + 1; change > 0; change--)
            changed[random_below(&stream, bytes)] = signs[random_below(&stream, sizeof signs)];
        char *copy = parse(&tree, changed, bytes - random_below(&stream, 3), LIMIT);
        if (copy == NULL) continue;
        CHECK_INT(tree.nodes[0].next, tree.count);
        json_read_free(&tree);
        free(copy);
    }
}

int main(void) {
    TEST_RUN(test_tree);
    TEST_RUN(test_texts);
    TEST_RUN(test_numbers);
    TEST_RUN(test_refused);
    TEST_RUN(test_limits);
    TEST_RUN(test_changes);
    return 0;
}
