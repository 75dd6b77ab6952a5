/* The JSON writer against texts that were written by hand from RFC 8259.
 *
 * Proves nesting and commas, escapes, that what is not UTF-8 or not finite still gives legal JSON,
 * and, for every buffer size from 0 up, that a text which does not fit is refused and nothing is
 * written behind the buffer.
 */
#include "base/json.h"
#include "tests/test.h"

static void test_nesting(void) {
    char text[512];
    struct json json;
    size_t bytes = 0;
    json_begin(&json, text, sizeof text);
    json_text(&json, "name", "gpt2");
    json_int(&json, "least", INT64_MIN);
    json_bool(&json, "on", true);
    json_bool(&json, "off", false);
    json_open_object(&json, "empty");
    json_close_object(&json);
    json_open_array(&json, "list");
    json_int(&json, NULL, 1);
    json_text(&json, NULL, "two");
    json_open_object(&json, NULL);
    json_int(&json, "three", 3);
    json_close_object(&json);
    json_open_array(&json, NULL);
    json_close_array(&json);
    json_close_array(&json);
    json_int(&json, "last", -1);
    CHECK_INT(json_end(&json, &bytes), STATUS_OK);
    CHECK_TEXT(text, "{\"name\":\"gpt2\",\"least\":-9223372036854775808,\"on\":true,\"off\":false,"
                     "\"empty\":{},\"list\":[1,\"two\",{\"three\":3},[]],\"last\":-1}");
    CHECK_INT(bytes, strlen(text));
    json_begin(&json, text, sizeof text);
    CHECK_INT(json_end(&json, &bytes), STATUS_OK);
    CHECK_TEXT(text, "{}");
}

/* The text of {"k":...}, which must fit. */
static const char *quoted(const char *value) {
    static char text[256];
    struct json json;
    size_t bytes;
    json_begin(&json, text, sizeof text);
    json_text(&json, "k", value);
    CHECK_INT(json_end(&json, &bytes), STATUS_OK);
    return text;
}

static void test_text(void) {
    CHECK_TEXT(quoted(""), "{\"k\":\"\"}");
    CHECK_TEXT(quoted("a\"b\\c/"), "{\"k\":\"a\\\"b\\\\c/\"}");
    CHECK_TEXT(quoted("\n\t\x01\x1f\x7f"), "{\"k\":\"\\u000a\\u0009\\u0001\\u001f\x7f\"}");
    /* 2, 3 and 4 bytes a character pass; the rows of RFC 3629's table of what is illegal do not. */
    CHECK_TEXT(quoted("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\xb5"),
               "{\"k\":\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\xb5\"}");
#define BAD "\xef\xbf\xbd"
    CHECK_TEXT(quoted("\x80"), "{\"k\":\"" BAD "\"}");
    CHECK_TEXT(quoted("\xc0\xaf"), "{\"k\":\"" BAD BAD "\"}");
    CHECK_TEXT(quoted("\xe0\x80\x80"), "{\"k\":\"" BAD BAD BAD "\"}");
    CHECK_TEXT(quoted("\xed\xa0\x80"), "{\"k\":\"" BAD BAD BAD "\"}");
    CHECK_TEXT(quoted("\xf4\x90\x80\x80"), "{\"k\":\"" BAD BAD BAD BAD "\"}");
    CHECK_TEXT(quoted("\xf5"), "{\"k\":\"" BAD "\"}");
    CHECK_TEXT(quoted("\xe2\x82"), "{\"k\":\"" BAD BAD "\"}"); /* cut off by the end */
    CHECK_TEXT(quoted("\xe2z"), "{\"k\":\"" BAD "z\"}");
#undef BAD
}

static void check_real(double value, int digits, const char *expected) {
    char text[64], wanted[64];
    struct json json;
    size_t bytes;
    json_begin(&json, text, sizeof text);
    json_real(&json, "x", value, digits);
    CHECK_INT(json_end(&json, &bytes), STATUS_OK);
    snprintf(wanted, sizeof wanted, "{\"x\":%s}", expected);
    CHECK_TEXT(text, wanted);
}

static void test_real(void) {
    check_real(0.0, 6, "0");
    check_real(1.25, 6, "1.25");
    check_real(-3e-4, 6, "-0.0003");
    check_real(2.0 / 3.0, 3, "0.667");
    check_real(0.1, 17, "0.10000000000000001");
    check_real(0.1, 99, "0.10000000000000001");
    check_real(123456.0, 0, "1e+05");
    check_real((double)NAN, 6, "null");
    check_real((double)INFINITY, 6, "null");
    check_real(-(double)INFINITY, 6, "null");
}

static void test_every_capacity(void) {
    const char *expected = "{\"key\":\"a\\\"b\",\"n\":12345,\"x\":0.5,\"l\":[true]}";
    size_t whole = strlen(expected) + 1;
    for (size_t capacity = 0; capacity <= whole + 2; capacity++) {
        char text[128];
        struct json json;
        size_t bytes = 999;
        memset(text, '#', sizeof text);
        json_begin(&json, text, capacity);
        json_text(&json, "key", "a\"b");
        json_int(&json, "n", 12345);
        json_real(&json, "x", 0.5, 6);
        json_open_array(&json, "l");
        json_bool(&json, NULL, true);
        json_close_array(&json);
        enum status status = json_end(&json, &bytes);
        CHECK_INT(status, capacity >= whole ? STATUS_OK : STATUS_INVALID);
        CHECK_INT(bytes, capacity >= whole ? whole - 1 : 999);
        if (status == STATUS_OK) CHECK_TEXT(text, expected);
        for (size_t i = capacity; i < sizeof text; i++)
            CHECK(text[i] == '#');
    }
}

int main(void) {
    TEST_RUN(test_nesting);
    TEST_RUN(test_text);
    TEST_RUN(test_real);
    TEST_RUN(test_every_capacity);
    return 0;
}
