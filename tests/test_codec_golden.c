/* Proves that payloads written by earlier builds still decode to the same values, and that the same
 * values still give the same payloads: tests/golden/codec_frames.txt has a line for each codec and
 * suffix: text, codec id, rows, cols, digest of the decoded values, payload in hex. Payloads packed
 * by zstd are only decoded, since another zstd may pack otherwise.
 * `test_codec_golden write` makes the file anew: for new codecs only, never to make this test pass.
 */
#include "base/checksum.h"
#include "base/memory.h"
#include "base/random.h"
#include "tests/codec_rig.h"

#include <inttypes.h>

#define GOLDEN "tests/golden/codec_frames.txt"

enum { GOLDEN_ROWS = 5, GOLDEN_COLS = 61, GOLDEN_STEP = 7, LINE_MAX = 8192 };

/* Without library functions, whose last bits differ between machines. */
static void make_values(float values[GOLDEN_ROWS * GOLDEN_COLS]) {
    struct random_stream random;
    random_open(&random, 21, RANDOM_SIMULATOR, 0);
    for (int i = 0; i < GOLDEN_ROWS * GOLDEN_COLS; i++) {
        float unit = 2 * random_unit(&random) - 1;
        values[i] = i / GOLDEN_COLS == 3 ? 0.0f : 0.01f * unit * unit * unit;
    }
}

static uint64_t digest_of(const float *values) {
    return checksum_xxh3(values, sizeof(float) * GOLDEN_ROWS * GOLDEN_COLS);
}

static int write_golden(void) {
    float values[GOLDEN_ROWS * GOLDEN_COLS];
    FILE *out = fopen(GOLDEN, "w");
    if (out == NULL) return 1;
    make_values(values);
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        struct codec_rig rig = codec_rig_open(codec_rig_texts[t], GOLDEN_ROWS, GOLDEN_COLS);
        codec_rig_pass(&rig, GOLDEN_STEP, values, 0.5f);
        fprintf(out, "%s %d %d %d %016" PRIx64 " ", codec_rig_texts[t], rig.result.codec,
                GOLDEN_ROWS, GOLDEN_COLS, digest_of(rig.decoded));
        for (size_t i = 0; i < rig.result.bytes; i++)
            fprintf(out, "%02x", rig.wire[i]);
        fprintf(out, "\n");
        codec_rig_close(&rig);
    }
    return fclose(out) == 0 ? 0 : 1;
}

static size_t parse_hex(const char *hex, uint8_t *bytes) {
    size_t count = 0;
    unsigned byte;
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        bytes[count++] = (uint8_t)byte;
    return count;
}

static void check_line(const char *line) {
    static char hex[LINE_MAX];
    static uint8_t wire[LINE_MAX / 2];
    char text[CODEC_TEXT_MAX];
    float values[GOLDEN_ROWS * GOLDEN_COLS];
    unsigned codec, rows, cols;
    uint64_t digest;
    CHECK_INT(
        sscanf(line, "%95s %u %u %u %" SCNx64 " %8191s", text, &codec, &rows, &cols, &digest, hex),
        6);
    CHECK(rows == GOLDEN_ROWS && cols == GOLDEN_COLS);
    size_t bytes = parse_hex(hex, wire);
    struct codec_rig rig = codec_rig_open(text, rows, cols);
    CHECK_INT(decoder_set((uint8_t)codec, wire, bytes, rig.decoded, rig.count, rig.decode_scratch),
              STATUS_OK);
    if (digest_of(rig.decoded) != digest) {
        fprintf(stderr, "%s decodes to other values than it did\n", text);
        exit(1);
    }
    make_values(values);
    codec_rig_pass(&rig, GOLDEN_STEP, values, 0.5f);
    CHECK_INT(digest_of(rig.decoded) == digest, 1);
    if (codec != CODEC_ZSTD) {
        CHECK_INT(rig.result.codec, codec);
        CHECK_INT(rig.result.bytes, bytes);
        CHECK(memcmp(rig.wire, wire, bytes) == 0);
    }
    codec_rig_close(&rig);
}

static void test_frames(void) {
    static char line[LINE_MAX + 256];
    int lines = 0;
    FILE *in = fopen(GOLDEN, "r");
    CHECK(in != NULL);
    while (fgets(line, sizeof line, in) != NULL) {
        check_line(line);
        lines++;
    }
    fclose(in);
    CHECK(lines >= CODEC_RIG_TEXTS);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "write") == 0) return write_golden();
    TEST_RUN(test_frames);
    return 0;
}
