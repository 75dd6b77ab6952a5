/* Proves what the data reader promises beyond one plain file. JSONL: every escape, white space and
 * foreign member, and each way to be malformed with its line and column. Zstd: contents come back
 * from files of one and several frames, with and without declared sizes; cut off at every byte,
 * followed by something, with a byte changed or with a window beyond the limit they are refused and
 * nothing hangs. Lists and patterns: order, formats that do not match, and that no window reaches
 * over the end of a file while every epoch still visits each window once.
 */
#include "tests/log_capture.h"
#include "tests/test.h"
#include "worker/data.h"
#include "worker/jsonl.h"
#include "worker/zst.h"

#include <glob.h>
#include <stdbool.h>
#include <unistd.h>
#include <zstd.h>

static char folder[] = "/tmp/test_data_files_XXXXXX";

static const char *path_of(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *content, size_t bytes) {
    FILE *file = fopen(path_of(name), "wb");
    CHECK(file != NULL);
    CHECK_INT(fwrite(content, 1, bytes, file), bytes);
    CHECK(fclose(file) == 0);
}

static void remove_files(void) {
    glob_t found = {0};
    if (glob(path_of("*"), 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            CHECK(unlink(found.gl_pathv[i]) == 0);
    }
    globfree(&found);
}

/* data's tokens, all of one part, are text [bytes]. */
static void check_text(const struct data *data, const char *text, size_t bytes) {
    CHECK_INT(data->format, DATA_BYTES);
    CHECK_INT(data->count, bytes);
    CHECK_INT(data->part_count, 1);
    CHECK(memcmp(data->one.tokens, text, bytes) == 0);
}

static void test_jsonl_documents(void) {
    static const char content[] =
        "{\"text\":\"one\"}\n"
        " \t{ \"id\" : [1, -2.5e+3, {\"text\": \"not this\"}, [], {}, null], \"text\" : "
        "\"t\\\"\\\\\\/\\b\\f\\n\\r\\tw\\u006f\" , \"more\": {\"a\": [true, false]}} \r\n"
        "\n  \r\n"
        "{\"text\":\"\\u00e9\\u20AC\\ud83d\\ude00 \xc3\xa9\"}\n"
        "{\"te\\u0078t\":\"\"}\n"
        "{\"text\":\"last\\u0000\"}";
    static const char expected[] =
        "one\nt\"\\/\b\f\n\r\two\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xc3\xa9\n\nlast";
    struct data data;
    write_file("x.jsonl", content, sizeof content - 1);
    CHECK(data_open(&data, path_of("x.jsonl")) == STATUS_OK);
    check_text(&data, expected, sizeof expected); // with its 0, which is the document's
    CHECK_INT(data_default_vocab(&data), 256);
    data_close(&data);
    /* The file itself was not written to. */
    char again[sizeof content];
    FILE *file = fopen(path_of("x.jsonl"), "rb");
    CHECK(file != NULL);
    CHECK_INT(fread(again, 1, sizeof again, file), sizeof content - 1);
    CHECK(memcmp(again, content, sizeof content - 1) == 0);
    CHECK(fclose(file) == 0);
    /* Told by its content as well; but an object without text is a text of its own. */
    write_file("x.txt", content, sizeof content - 1);
    CHECK(data_open(&data, path_of("x.txt")) == STATUS_OK);
    check_text(&data, expected, sizeof expected);
    data_close(&data);
    write_file("y.txt", "{\"a\": 1}\n", 9);
    CHECK(data_open(&data, path_of("y.txt")) == STATUS_OK);
    check_text(&data, "{\"a\": 1}\n", 9);
    data_close(&data);
    remove_files();
}

static void test_jsonl_malformed(void) {
    static const struct {
        const char *line, *reason;
    } cases[] = {
        {"x", "column 1: expected an object"},
        {"[]", "column 1: expected an object"},
        {"{}", "column 2: the object has no \"text\""},
        {"{\"a\":1}", "column 8: the object has no \"text\""},
        {"{\"text\":1}", "column 9: \"text\" is not a string"},
        {"{\"text\":\"a\",\"text\":\"b\"}", "a second \"text\""},
        {"{\"text\":\"a\"", "expected a comma or a closing bracket"},
        {"{\"text\":\"a\",}", "expected a string in double quotes"},
        {"{\"text\":\"a\"} x", "column 14: something after the object"},
        {"{\"text\":\"a\"}{", "something after the object"},
        {"{\"text\":\"a", "a string without an end"},
        {"{\"text\":\"a\\", "an unknown escape"},
        {"{\"text\":\"\\x41\"}", "an unknown escape"},
        {"{\"text\":\"\\u12g4\"}", "four hexadecimal digits"},
        {"{\"text\":\"\\u12", "four hexadecimal digits"},
        {"{\"text\":\"\\ud800\"}", "a surrogate without its pair"},
        {"{\"text\":\"\\ud800\\u0041\"}", "a surrogate without its pair"},
        {"{\"text\":\"\\udc00\\ud800\"}", "a surrogate without its pair"},
        {"{\"text\":\"\xff\"}", "column 10: bytes that are not UTF-8"},
        {"{\"text\":\"\xc3\"}", "bytes that are not UTF-8"},
        {"{\"text\":\"\xed\xa0\x80\"}", "bytes that are not UTF-8"},
        {"{\"text\":\"\xc0\x80\"}", "bytes that are not UTF-8"},
        {"{\"text\":\"a\tb\"}", "a control character in a string"},
        {"{'text':\"a\"}", "expected a string in double quotes"},
        {"{\"text\" \"a\"}", "expected : after a key"},
        {"{\"a\":01,\"text\":\"\"}", "expected a comma"},
        {"{\"a\":-,\"text\":\"\"}", "expected a"},
        {"{\"a\":1.,\"text\":\"\"}", "expected a digit"},
        {"{\"a\":1e,\"text\":\"\"}", "expected a digit"},
        {"{\"a\":tru,\"text\":\"\"}", "expected a value"},
        {"{\"a\":NaN,\"text\":\"\"}", "expected a value"},
        {"{\"a\":[1 2],\"text\":\"\"}", "expected a comma or a closing bracket"},
        {"{\"a\":[1,],\"text\":\"\"}", "expected a value"},
        {"{\"a\":[1},\"text\":\"\"}", "expected a comma or a closing bracket"},
        {"{\"a\":{\"b\"},\"text\":\"\"}", "expected : after a key"},
        {"{\"a\":{\"b\":1,},\"text\":\"\"}", "expected a string in double quotes"},
        {"{\"a\":", "expected a value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char content[256];
        uint64_t joined = 0;
        int bytes = snprintf(content, sizeof content, "{\"text\":\"ok\"}\n\n%s\n", cases[i].line);
        log_restart();
        CHECK_INT(jsonl_join((uint8_t *)content, (uint64_t)bytes, "x", &joined), STATUS_CORRUPT);
        EXPECT_LOG("x: line 3, column ", 1);
        EXPECT_LOG(cases[i].reason, 1);
    }
    /* Depth: 64 open brackets are allowed beside the object's own. */
    for (int depth = 63; depth <= 66; depth++) {
        char open[128] = "";
        char close[128] = "";
        char content[512];
        memset(open, '[', (size_t)depth);
        memset(close, ']', (size_t)depth);
        (void)snprintf(content, sizeof content, "{\"a\":%s%s,\"text\":\"\"}", open, close);
        uint64_t joined = 1;
        enum status status = jsonl_join((uint8_t *)content, strlen(content), "x", &joined);
        CHECK_INT(status, depth <= JSONL_DEPTH_MAX ? STATUS_OK : STATUS_CORRUPT);
    }
    struct data data;
    log_restart();
    write_file("x.jsonl", "\n\n", 2);
    CHECK(data_open(&data, path_of("x.jsonl")) == STATUS_IO);
    EXPECT_LOG("holds no text", 1);
    remove_files();
}

/* text [bytes] as frames of zstd, `piece` bytes each, -> file; its size. */
// NOLINTNEXTLINE(readability-non-const-parameter): zstd writes into file
static size_t compress(uint8_t *file, size_t capacity, const char *text, size_t bytes, size_t piece,
                       bool declared, int window_log) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    CHECK(context != NULL);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, declared);
    if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    size_t written = 0;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t part = bytes - at < piece ? bytes - at : piece;
        ZSTD_outBuffer out = {file + written, capacity - written, 0};
        ZSTD_inBuffer in = {text + at, part, 0};
        if (declared) ZSTD_CCtx_setPledgedSrcSize(context, part);
        /* In two calls, so that the size is not known from the start. */
        if (!declared) CHECK(!ZSTD_isError(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush)));
        CHECK_INT(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0);
        written += out.pos;
    }
    ZSTD_freeCCtx(context);
    return written;
}

enum { TEXT_BYTES = 300000 };
static char text[TEXT_BYTES];
static uint8_t packed[2 * TEXT_BYTES];

static void make_text(void) {
    uint32_t state = 1;
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        state = state * 1664525 + 1013904223;
        text[i] = "etaoin shrdlu\n"[(state >> 24) % 14];
    }
}

static void test_zst_comes_back(void) {
    make_text();
    for (int declared = 0; declared < 2; declared++) {
        for (size_t piece = 70000; piece <= TEXT_BYTES; piece += 230000) {
            size_t bytes =
                compress(packed, sizeof packed, text, TEXT_BYTES, piece, declared == 1, 0);
            struct data data;
            write_file("t.txt.zst", packed, bytes);
            CHECK(data_open(&data, path_of("t.txt.zst")) == STATUS_OK);
            check_text(&data, text, TEXT_BYTES);
            data_close(&data);
            uint8_t *content = NULL;
            uint64_t content_bytes = 0;
            log_restart();
            CHECK_INT(zst_decode(packed, bytes, "x", TEXT_BYTES, &content, &content_bytes),
                      STATUS_OK);
            CHECK_INT(content_bytes, TEXT_BYTES);
            zst_free(content, content_bytes);
            CHECK_INT(zst_decode(packed, bytes, "x", TEXT_BYTES - 1, &content, &content_bytes),
                      STATUS_MEMORY);
            EXPECT_LOG("decompress it with zstd -d", 1);
        }
    }
    remove_files();
}

/* What is inside is told by the rest of the name, and by the content. */
static void test_zst_holds_any_format(void) {
    static const char jsonl[] = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
    static const uint16_t nano[3] = {1, 2, 50256};
    struct data data;
    size_t bytes = compress(packed, sizeof packed, jsonl, sizeof jsonl - 1, 1000, true, 0);
    write_file("a.jsonl.zst", packed, bytes);
    CHECK(data_open(&data, path_of("a.jsonl.zst")) == STATUS_OK);
    check_text(&data, "one\ntwo", 7);
    data_close(&data);
    bytes = compress(packed, sizeof packed, (const char *)nano, sizeof nano, 1000, false, 0);
    write_file("a.bin.zst", packed, bytes);
    CHECK(data_open(&data, path_of("a.bin.zst")) == STATUS_OK);
    CHECK_INT(data.format, DATA_NANOGPT);
    CHECK_INT(data.count, 3);
    CHECK(data_check_vocab(&data, 50257) == STATUS_OK);
    data_close(&data);
    /* Nothing at all, as a frame. */
    write_file("n.zst", packed, ZSTD_compress(packed, sizeof packed, "", 0, 1));
    CHECK(data_open(&data, path_of("n.zst")) == STATUS_IO);
    remove_files();
}

static enum status decode(const uint8_t *file, size_t bytes) {
    uint8_t *content = NULL;
    uint64_t content_bytes = 0;
    /* A copy of just the size, so that a sanitizer sees each byte read beyond. */
    uint8_t *copy = malloc(bytes + (bytes == 0));
    CHECK(copy != NULL);
    memcpy(copy, file, bytes);
    enum status status = zst_decode(copy, bytes, "x.zst", 1 << 24, &content, &content_bytes);
    if (status == STATUS_OK) zst_free(content, content_bytes);
    free(copy);
    return status;
}

static void test_zst_damaged(void) {
    static const size_t piece = 300;
    make_text();
    for (int declared = 0; declared < 2; declared++) {
        size_t bytes = compress(packed, sizeof packed, text, 2 * piece, piece, declared == 1, 0);
        size_t first = ZSTD_findFrameCompressedSize(packed, bytes);
        CHECK_INT(decode(packed, bytes), STATUS_OK);
        for (size_t cut = 1; cut < bytes; cut++) {
            log_restart();
            CHECK_INT(decode(packed, cut), cut == first ? STATUS_OK : STATUS_CORRUPT);
            if (cut != first) EXPECT_LOG("x.zst: byte ", 1);
        }
        memset(packed + bytes, 'x', 20);
        log_restart();
        CHECK_INT(decode(packed, bytes + 20), STATUS_CORRUPT);
        EXPECT_LOG("something behind the last", 1);
        /* The checksum finds any change of the content; a changed header may still be sound. */
        for (size_t at = 12; at < first; at++) {
            packed[at] ^= 0x10;
            CHECK(decode(packed, bytes) != STATUS_OK);
            packed[at] ^= 0x10;
        }
    }
    log_restart();
    CHECK_INT(decode((const uint8_t *)"no zstd file", 12), STATUS_CORRUPT);
    EXPECT_LOG("byte 0: not a zstd file", 1);
}

static void test_zst_window(void) {
    static const struct {
        int log;
        enum status status;
    } cases[] = {{27, STATUS_OK}, {28, STATUS_CORRUPT}, {31, STATUS_CORRUPT}};
    make_text();
    size_t bytes = compress(packed, sizeof packed, text, TEXT_BYTES, TEXT_BYTES, false, 20);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        /* The window's exponent, where the frame's header has it. */
        CHECK_INT(packed[5], (20 - 10) << 3);
        packed[5] = (uint8_t)((cases[i].log - 10) << 3);
        log_restart();
        CHECK_INT(decode(packed, bytes), cases[i].status);
        EXPECT_LOG("a window of more than 2^27 bytes", cases[i].status == STATUS_CORRUPT);
        packed[5] = (20 - 10) << 3;
    }
}

/* llm.c files a_0.bin, a_1.bin, ... whose tokens name their place: file * 1000 + index. */
static void write_shards(const int *counts, int files) {
    for (int f = 0; f < files; f++) {
        uint16_t content[512 + 1000] = {0};
        int32_t header[3] = {20240520, 1, counts[f]};
        char name[32];
        memcpy(content, header, sizeof header);
        for (int i = 0; i < counts[f]; i++)
            content[512 + i] = (uint16_t)(f * 1000 + i);
        snprintf(name, sizeof name, "a_%d.bin", f);
        write_file(name, content, 1024 + (size_t)counts[f] * 2);
    }
}

/* Reads an epoch: each window lies in one file, and is read once; how many there are. */
static uint64_t check_epoch(const struct data_stream *stream, int files) {
    static bool seen[10][1000];
    memset(seen, 0, sizeof seen);
    uint64_t T = (uint64_t)stream->T;
    int32_t tokens[32], targets[32];
    CHECK(T <= 32 && files <= 10);
    for (uint64_t n = 0; n < stream->windows; n++) {
        data_stream_read(stream, n, 1, tokens, targets);
        for (uint64_t t = 0; t < T; t++) {
            CHECK_INT(tokens[t], tokens[0] + (int32_t)t);
            CHECK_INT(targets[t], tokens[0] + (int32_t)t + 1);
        }
        int file = tokens[0] / 1000, index = tokens[0] % 1000;
        CHECK(file < files && !seen[file][index]);
        CHECK_INT(targets[T - 1] / 1000, file);
        seen[file][index] = true;
    }
    return stream->windows;
}

static void test_shards(void) {
    /* Among them one too short for a window, one of just a window, and one token less and more. */
    static const int counts[] = {50, 3, 9, 8, 10, 1000, 17};
    enum { FILES = sizeof counts / sizeof counts[0] };
    uint64_t all = 0, windows = 0;
    struct data data;
    struct data_stream stream;
    write_shards(counts, FILES);
    CHECK(data_open(&data, path_of("a_?.bin")) == STATUS_OK);
    CHECK_INT(data.part_count, FILES);
    for (int f = 0; f < FILES; f++) {
        all += (uint64_t)counts[f];
        windows += (uint64_t)(counts[f] - 1) / 8;
    }
    CHECK_INT(data.count, all);
    CHECK(data_stream_open(&stream, &data, 0, all, 8, 3) == STATUS_OK);
    CHECK_INT(check_epoch(&stream, FILES), windows);
    /* A part of it that begins and ends inside files. */
    CHECK(data_stream_open(&stream, &data, 20, 50 + 3 + 9 + 8 + 10 - 20 + 100, 8, 3) == STATUS_OK);
    CHECK_INT(check_epoch(&stream, FILES), 29 / 8 + 1 + 1 + 99 / 8);
    /* Enough tokens, but nowhere in one file. */
    CHECK(data_stream_open(&stream, &data, 45, 12, 8, 3) == STATUS_IO);
    CHECK(data_check_vocab(&data, 6017) == STATUS_OK);
    log_restart();
    CHECK(data_check_vocab(&data, 6016) == STATUS_CORRUPT);
    EXPECT_LOG("a_6.bin: token 6016 at byte 1056", 1);
    data_close(&data);
    /* A list, in its own order. */
    char list[600], one[256];
    snprintf(one, sizeof one, "%s", path_of("a_5.bin"));
    snprintf(list, sizeof list, "%s,%s", one, path_of("a_[01].bin"));
    CHECK(data_open(&data, list) == STATUS_OK);
    CHECK_INT(data.part_count, 3);
    CHECK_INT(data.parts[0].count, 1000);
    CHECK_INT(data.parts[1].count, 50);
    data_close(&data);
    remove_files();
}

static void test_lists_refused(void) {
    static const int counts[] = {20};
    struct data data = {0};
    log_restart();
    CHECK(data_open(&data, path_of("*.bin")) == STATUS_IO);
    EXPECT_LOG("no file matches", 1);
    CHECK(data_open(&data, ",") == STATUS_IO);
    write_shards(counts, 1);
    write_file("b.bin", "abcd", 4);
    CHECK(data_open(&data, path_of("*.bin")) == STATUS_CORRUPT);
    EXPECT_LOG("b.bin: holds nanoGPT tokens, but ", 1);
    CHECK(data.part_count == 0 && data.parts == NULL);
    /* A name with letters of patterns is itself. */
    write_file("c[1],*.txt", "hello", 5);
    CHECK(data_open(&data, path_of("c[1],*.txt")) == STATUS_OK);
    check_text(&data, "hello", 5);
    data_close(&data);
    remove_files();
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    log_capture();
    TEST_RUN(test_jsonl_documents);
    TEST_RUN(test_jsonl_malformed);
    TEST_RUN(test_zst_comes_back);
    TEST_RUN(test_zst_holds_any_format);
    TEST_RUN(test_zst_damaged);
    TEST_RUN(test_zst_window);
    TEST_RUN(test_shards);
    TEST_RUN(test_lists_refused);
    CHECK(rmdir(folder) == 0);
    return 0;
}
