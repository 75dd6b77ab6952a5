/* Proves what the data reader promises. Formats: files written here byte by byte are read back
 * token by token; each way a header and a size can disagree is CORRUPT, nothing to read is IO.
 * Vocabulary: one token too large is found wherever it lies. Order: the tokens name their own
 * position, so each window read tells which it was: every epoch visits all windows once, epochs and
 * seeds differ, the shares of the workers do not meet, and a position alone resumes a stream.
 */
#include "tests/test.h"
#include "worker/data.h"

#include <stdbool.h>
#include <unistd.h>

/* A file under a temporary folder, removed again by drop_file(). */
struct file {
    char folder[64];
    char path[128];
};

static struct file make_file(const char *name, const void *content, size_t bytes) {
    struct file file;
    snprintf(file.folder, sizeof(file.folder), "/tmp/test_data_XXXXXX");
    CHECK(mkdtemp(file.folder) != NULL);
    snprintf(file.path, sizeof(file.path), "%s/%s", file.folder, name);
    FILE *out = fopen(file.path, "wb");
    CHECK(out != NULL);
    CHECK_INT(fwrite(content, 1, bytes, out), bytes);
    CHECK(fclose(out) == 0);
    return file;
}

static void drop_file(const struct file *file) {
    CHECK(unlink(file->path) == 0);
    CHECK(rmdir(file->folder) == 0);
}

/* Opens content as a file of that name; the status of data_open. */
static enum status try_open(const char *name, const void *content, size_t bytes) {
    struct file file = make_file(name, content, bytes);
    struct data data = {0};
    enum status status = data_open(&data, file.path);
    data_close(&data);
    drop_file(&file);
    return status;
}

/* The first T = count - 1 tokens and the last one, through a stream of one window. */
static void check_tokens(const struct data *data, const int32_t *expected, int64_t count) {
    CHECK_INT(data->count, count);
    struct data_stream stream;
    int32_t tokens[64], targets[64];
    CHECK(data_stream_open(&stream, data, 0, data->count, count - 1, 1) == STATUS_OK);
    CHECK_INT(stream.windows, 1);
    data_stream_read(&stream, 0, 1, tokens, targets);
    for (int64_t i = 0; i < count - 1; i++) {
        CHECK_INT(tokens[i], expected[i]);
        CHECK_INT(targets[i], expected[i + 1]);
    }
}

static void test_bytes(void) {
    static const int32_t expected[5] = {'a', 0, 255, '\n', 'z'};
    struct file file = make_file("text.txt", "a\0\xff\nz", 5);
    struct data data;
    CHECK(data_open(&data, file.path) == STATUS_OK);
    CHECK_INT(data.format, DATA_BYTES);
    CHECK_INT(data_default_vocab(&data), 256);
    check_tokens(&data, expected, 5);
    CHECK(data_check_vocab(&data, 256) == STATUS_OK);
    CHECK(data_check_vocab(&data, 255) == STATUS_CORRUPT);
    data_close(&data);
    data_close(&data);
    drop_file(&file);
}

static void test_nanogpt(void) {
    static const uint8_t content[8] = {1, 0, 0, 1, 0x50, 0xc4, 0xff, 0xff};
    static const int32_t expected[4] = {1, 256, 50256, 65535};
    struct file file = make_file("train.bin", content, sizeof(content));
    struct data data;
    CHECK(data_open(&data, file.path) == STATUS_OK);
    CHECK_INT(data.format, DATA_NANOGPT);
    CHECK_INT(data_default_vocab(&data), 50257);
    check_tokens(&data, expected, 4);
    CHECK(data_check_vocab(&data, 50257) == STATUS_CORRUPT);
    CHECK(data_check_vocab(&data, 65536) == STATUS_OK);
    data_close(&data);
    drop_file(&file);
    CHECK(try_open("train.bin", content, 7) == STATUS_CORRUPT);
    CHECK(try_open("train.txt", content, 7) == STATUS_OK);
}

/* An llm.c file of 4 tokens 10, 20, 65535 and `last` -> content [1024 + 16]; its size. */
static size_t make_llmc(uint8_t *content, bool wide, uint32_t last) {
    int32_t header[256] = {wide ? 20240801 : 20240520, wide ? 7 : 1, 4};
    uint32_t tokens32[4] = {10, 20, 65535, last};
    uint16_t tokens16[4] = {10, 20, 65535, (uint16_t)last};
    memcpy(content, header, sizeof(header));
    memcpy(content + 1024, wide ? (const void *)tokens32 : tokens16, wide ? 16 : 8);
    return wide ? 1024 + 16 : 1024 + 8;
}

static void test_llmc(void) {
    for (int wide = 0; wide < 2; wide++) {
        uint8_t content[1040];
        int32_t expected[4] = {10, 20, 65535, wide == 1 ? 128255 : 7};
        size_t bytes = make_llmc(content, wide == 1, (uint32_t)expected[3]);
        for (int bin = 0; bin < 2; bin++) { // the content decides, not the name
            struct file file = make_file(bin == 1 ? "x.bin" : "x.tokens", content, bytes);
            struct data data;
            CHECK(data_open(&data, file.path) == STATUS_OK);
            CHECK_INT(data.format, wide == 1 ? DATA_LLMC32 : DATA_LLMC16);
            CHECK_INT(data_default_vocab(&data), wide == 1 ? 128256 : 50257);
            check_tokens(&data, expected, 4);
            CHECK(data_check_vocab(&data, 65536 + wide * 62720) == STATUS_OK);
            CHECK(data_check_vocab(&data, 65535) == STATUS_CORRUPT);
            data_close(&data);
            drop_file(&file);
        }
    }
}

static void test_llmc_damaged(void) {
    for (int wide = 0; wide < 2; wide++) {
        uint8_t content[1044] = {0};
        size_t bytes = make_llmc(content, wide == 1, 7);
        CHECK(try_open("x.bin", content, bytes) == STATUS_OK);
        CHECK(try_open("x.bin", content, bytes - 1) == STATUS_CORRUPT);
        CHECK(try_open("x.bin", content, bytes - 4) == STATUS_CORRUPT);
        CHECK(try_open("x.bin", content, bytes + 4) == STATUS_CORRUPT);
        CHECK(try_open("x.bin", content, 1024) == STATUS_CORRUPT);
        CHECK(try_open("x.bin", content, 1023) == STATUS_CORRUPT);
        CHECK(try_open("x.bin", content, 4) == STATUS_CORRUPT);
        CHECK(try_open("x.bin", content, 2) == STATUS_OK); // no magic yet: one uint16
        content[4]++;
        CHECK(try_open("x.bin", content, bytes) == STATUS_CORRUPT);
        content[4]--;
        content[8] = 0; // no tokens
        CHECK(try_open("x.bin", content, bytes) == STATUS_CORRUPT);
        CHECK(try_open("x.bin", content, 1024) == STATUS_CORRUPT);
        content[8] = 4;
        content[11] = 0x80; // a negative count
        CHECK(try_open("x.bin", content, bytes) == STATUS_CORRUPT);
    }
}

static void test_nothing_to_read(void) {
    struct data data = {0};
    CHECK(data_open(&data, "/tmp/test_data_no_such_file") == STATUS_IO);
    CHECK(data_open(&data, "/tmp") == STATUS_IO);
    CHECK(try_open("x.bin", "", 0) == STATUS_IO);
    CHECK(try_open("x.txt", "", 0) == STATUS_IO);
    static const int32_t nothing[1];
    CHECK(data_parse(&data, nothing, 0, "x") == STATUS_IO);
    CHECK(data.one.content.bytes == NULL);
}

/* Around the ends of the pieces that the check works in, and at the ends of the file. */
static void test_vocab_everywhere(void) {
    const uint64_t count = 200000;
    static const uint64_t places[] = {0, 1, 65535, 65536, 131071, 131072, 199999};
    uint32_t *tokens32 = calloc(256 + count, 4);
    uint16_t *tokens16 = calloc(count, 2);
    uint8_t *tokens8 = calloc(count, 1);
    CHECK(tokens32 != NULL && tokens16 != NULL && tokens8 != NULL);
    tokens32[0] = 20240801;
    tokens32[1] = 7;
    tokens32[2] = (uint32_t)count;
    struct data wide, narrow, bytes;
    CHECK(data_parse(&wide, tokens32, 1024 + 4 * count, "x") == STATUS_OK);
    CHECK(data_parse(&narrow, tokens16, 2 * count, "x.bin") == STATUS_OK);
    CHECK(data_parse(&bytes, tokens8, count, "x") == STATUS_OK);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        tokens32[256 + places[i]] = UINT32_MAX;
        tokens16[places[i]] = 40000;
        tokens8[places[i]] = 200;
        CHECK(data_check_vocab(&wide, INT32_MAX) == STATUS_CORRUPT);
        CHECK(data_check_vocab(&narrow, 40000) == STATUS_CORRUPT);
        CHECK(data_check_vocab(&narrow, 40001) == STATUS_OK);
        CHECK(data_check_vocab(&bytes, 200) == STATUS_CORRUPT);
        CHECK(data_check_vocab(&bytes, 201) == STATUS_OK);
        tokens32[256 + places[i]] = tokens16[places[i]] = tokens8[places[i]] = 0;
        CHECK(data_check_vocab(&wide, 1) == STATUS_OK);
        CHECK(data_check_vocab(&narrow, 1) == STATUS_OK);
        CHECK(data_check_vocab(&bytes, 1) == STATUS_OK);
    }
    free(tokens32);
    free(tokens16);
    free(tokens8);
}

/* Token i of these data is i, so that a window's first token tells which window it is. */
#define COUNT 5000

struct counted {
    _Alignas(4) uint16_t tokens[COUNT];
    struct data data;
};

static void open_counted(struct counted *counted) {
    for (int i = 0; i < COUNT; i++)
        counted->tokens[i] = (uint16_t)i;
    CHECK(data_parse(&counted->data, counted->tokens, sizeof(counted->tokens), "x.bin") ==
          STATUS_OK);
}

/* Reads one sequence, checks that it is a whole window of the stream; which one. */
static uint64_t window_at(const struct data_stream *stream, uint64_t number) {
    int32_t tokens[64], targets[64];
    CHECK(stream->T <= 64);
    data_stream_read(stream, number, 1, tokens, targets);
    for (int64_t t = 0; t < stream->T; t++) {
        CHECK_INT(tokens[t], tokens[0] + t);
        CHECK_INT(targets[t], tokens[0] + t + 1);
    }
    uint64_t from = (uint64_t)tokens[0] - stream->first;
    CHECK((uint64_t)tokens[0] >= stream->first);
    CHECK(from + (uint64_t)stream->T < stream->count);
    CHECK_INT(from % (uint64_t)stream->T, 0);
    return from / (uint64_t)stream->T;
}

/* For many counts of windows, among them 1, powers of 4 and one beside them. */
static void test_epochs_are_permutations(void) {
    static struct counted counted;
    static bool seen[COUNT];
    open_counted(&counted);
    static const uint64_t counts[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 257, 1000, 4997};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct data_stream stream;
        CHECK(data_stream_open(&stream, &counted.data, 2, counts[i] + 1, 1, 9) == STATUS_OK);
        CHECK_INT(stream.windows, counts[i]);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof(seen));
            for (uint64_t index = 0; index < counts[i]; index++) {
                uint64_t window = window_at(&stream, epoch * counts[i] + index);
                CHECK(window < counts[i] && !seen[window]);
                seen[window] = true;
            }
        }
    }
}

/* How many of the first `count` numbers of two sequences of windows agree; and, of one with itself
 * in order, how often the next window follows the last. A random order gives about one of each. */
static void test_orders_differ(void) {
    static struct counted counted;
    open_counted(&counted);
    struct data_stream one, other;
    CHECK(data_stream_open(&one, &counted.data, 0, COUNT, 4, 1) == STATUS_OK);
    CHECK(data_stream_open(&other, &counted.data, 0, COUNT, 4, 2) == STATUS_OK);
    CHECK_INT(one.windows, (COUNT - 1) / 4);
    int64_t same_seed = 0, same_epoch = 0, follows = 0, still = 0;
    uint64_t last = 0;
    for (uint64_t n = 0; n < one.windows; n++) {
        uint64_t window = window_at(&one, n);
        same_seed += window == window_at(&other, n);
        same_epoch += window == window_at(&one, n + one.windows);
        still += window == n;
        follows += n > 0 && window == last + 1;
        last = window;
    }
    CHECK(same_seed < 12);
    CHECK(same_epoch < 12);
    CHECK(still < 12);
    CHECK(follows < 12);
}

/* Workers that follow the rule of data.h: their shares of an epoch are disjoint, together all. */
static void test_ranks_are_disjoint(void) {
    enum { WORKERS = 3, ROWS = 4, STEPS = 26 };
    static struct counted counted;
    static int visits[COUNT];
    open_counted(&counted);
    struct data_stream stream;
    CHECK(data_stream_open(&stream, &counted.data, 0, WORKERS * ROWS * STEPS * 8 + 1, 8, 5) ==
          STATUS_OK);
    CHECK_INT(stream.windows, WORKERS * ROWS * STEPS);
    int32_t tokens[ROWS * 8], targets[ROWS * 8];
    for (uint64_t rank = 0; rank < WORKERS; rank++) {
        for (uint64_t step = 0; step < STEPS; step++) {
            data_stream_read(&stream, (step * WORKERS + rank) * ROWS, ROWS, tokens, targets);
            for (int b = 0; b < ROWS; b++)
                visits[tokens[(size_t)b * 8] / 8]++;
        }
    }
    for (int i = 0; i < WORKERS * ROWS * STEPS; i++)
        CHECK_INT(visits[i], 1);
}

/* A batch is the sequences one by one, also across the end of an epoch, in any order of asking. */
static void test_positions_resume(void) {
    static struct counted counted;
    open_counted(&counted);
    struct data_stream stream, again;
    CHECK(data_stream_open(&stream, &counted.data, 100, 81, 8, 5) == STATUS_OK);
    CHECK(data_stream_open(&again, &counted.data, 100, 81, 8, 5) == STATUS_OK);
    CHECK_INT(stream.windows, 10);
    int32_t tokens[25 * 8], targets[25 * 8], one[8], next[8];
    data_stream_read(&stream, 3, 25, tokens, targets);
    for (int64_t b = 24; b >= 0; b--) {
        data_stream_read(&again, (uint64_t)(3 + b), 1, one, next);
        CHECK(memcmp(one, tokens + b * 8, sizeof(one)) == 0);
        CHECK(memcmp(next, targets + b * 8, sizeof(next)) == 0);
    }
}

static void test_too_short(void) {
    static struct counted counted;
    open_counted(&counted);
    struct data_stream stream;
    CHECK(data_stream_open(&stream, &counted.data, 0, 8, 8, 1) == STATUS_IO);
    CHECK(data_stream_open(&stream, &counted.data, 0, 0, 1, 1) == STATUS_IO);
    CHECK(data_stream_open(&stream, &counted.data, COUNT, 0, 1, 1) == STATUS_IO);
    CHECK(data_stream_open(&stream, &counted.data, COUNT - 9, 9, 8, 1) == STATUS_OK);
    CHECK_INT(window_at(&stream, 12345), 0);
}

int main(void) {
    TEST_RUN(test_bytes);
    TEST_RUN(test_nanogpt);
    TEST_RUN(test_llmc);
    TEST_RUN(test_llmc_damaged);
    TEST_RUN(test_nothing_to_read);
    TEST_RUN(test_vocab_everywhere);
    TEST_RUN(test_epochs_are_permutations);
    TEST_RUN(test_orders_differ);
    TEST_RUN(test_ranks_are_disjoint);
    TEST_RUN(test_positions_resume);
    TEST_RUN(test_too_short);
    return 0;
}
