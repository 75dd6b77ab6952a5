/* Proves that texts become the tokens that the published tokenizers make. The oracle is recorded:
 * tests/golden/make_tokenizer.py trained one vocabulary and wrote it in three forms, with the ids
 * that the packages `tokenizers` and `tiktoken` give for texts with everything odd in them (ids in
 * tests/golden/tokenizer_ids.txt). Beyond it: any bytes come back from their tokens; a slow merge,
 * written here by the definition, agrees on long pieces, where the fast one keeps a heap; a text
 * cut at tokenizer_cut() gives the same tokens; files of other kinds are refused, each with its
 * reason.
 */
#include "base/files.h"
#include "base/random.h"
#include "tests/log_capture.h"
#include "tests/test.h"
#include "worker/bpe.h"
#include "worker/tokenizer_read.h"

#include <stdbool.h>

#define FOLDER    "tests/golden/"
#define TEXT_MOST 4096
#define RANKS     600 /* of the golden vocabulary */

struct opened {
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
};

static struct opened open_pair(const char *path, const char *pattern) {
    struct opened opened = {0};
    CHECK_INT(tokenizer_open(&opened.tokenizer, path, pattern), STATUS_OK);
    CHECK_INT(tokenizer_encoder_open(&opened.encoder, opened.tokenizer), STATUS_OK);
    return opened;
}

static void close_pair(struct opened *opened) {
    tokenizer_encoder_close(opened->encoder);
    tokenizer_close(opened->tokenizer);
}

static char *read_golden(const char *name, size_t *bytes) {
    char path[256], *content = NULL;
    snprintf(path, sizeof path, FOLDER "%s", name);
    CHECK_INT(files_read(path, (size_t)1 << 20, &content, bytes), STATUS_OK);
    return content;
}

/* content with its first `from` replaced, in new memory. */
static char *replaced(const char *content, const char *from, const char *to) {
    const char *at = strstr(content, from);
    CHECK(at != NULL);
    size_t capacity = strlen(content) + strlen(to) + 1;
    char *result = calloc(capacity, 1);
    CHECK(result != NULL);
    (void)snprintf(result, capacity, "%.*s%s%s", (int)(at - content), content, to,
                   at + strlen(from));
    return result;
}

static struct opened open_spaced(void) {
    size_t bytes = 0;
    char *content = read_golden("tokenizer.json", &bytes);
    char *text = replaced(content, "\"add_prefix_space\": false", "\"add_prefix_space\": true");
    struct opened opened = {0};
    CHECK_INT(tokenizer_parse_json(&opened.tokenizer, text, strlen(text), "spaced"), STATUS_OK);
    CHECK_INT(tokenizer_encoder_open(&opened.encoder, opened.tokenizer), STATUS_OK);
    free(text);
    free(content);
    return opened;
}

/* ids are those of the line's numbers; and they decode to the text. */
static void check_line(struct opened *opened, const uint8_t *text, size_t bytes, const char *kind,
                       char *numbers) {
    const uint32_t *ids = NULL;
    size_t count = 0, expected = 0;
    CHECK_INT(tokenizer_encode(opened->encoder, text, bytes, true, &ids, &count), STATUS_OK);
    char *rest = NULL;
    for (char *word = strtok_r(numbers, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        if (expected >= count || ids[expected] != strtoul(word, NULL, 10)) {
            fprintf(stderr, "%s: text '%.*s': token %zu of %zu is not %s\n", kind, (int)bytes,
                    (const char *)text, expected, count, word);
            exit(1);
        }
        expected++;
    }
    CHECK_INT(count, expected);
    uint8_t decoded[TEXT_MOST];
    const int32_t *signed_ids = (const int32_t *)ids;
    size_t space = strcmp(kind, "spaced") == 0 && bytes > 0 && text[0] != ' ';
    CHECK_INT(tokenizer_decode_bound(opened->tokenizer, signed_ids, count), bytes + space);
    CHECK_INT(tokenizer_decode(opened->tokenizer, signed_ids, count, decoded), bytes + space);
    CHECK(memcmp(decoded + space, text, bytes) == 0);
}

static size_t from_hex(const char *hex, uint8_t *text) {
    size_t bytes = strlen(hex) / 2;
    CHECK(bytes <= TEXT_MOST);
    for (size_t i = 0; i < bytes; i++) {
        unsigned value = 0;
        CHECK_INT(sscanf(hex + 2 * i, "%2x", &value), 1);
        text[i] = (uint8_t)value;
    }
    return bytes;
}

static void test_golden_ids(void) {
    static const char *const kinds[] = {"json", "spaced", "llama3", "gpt2", "cl100k", "o200k"};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    struct opened opened[KINDS] = {open_pair(FOLDER "tokenizer.json", NULL), open_spaced(),
                                   open_pair(FOLDER "tokenizer_llama3.json", "")};
    for (size_t k = 3; k < KINDS; k++)
        opened[k] = open_pair(FOLDER "tokenizer.tiktoken", kinds[k]);
    CHECK_TEXT(tokenizer_pattern(opened[0].tokenizer), "gpt2");
    CHECK_TEXT(tokenizer_pattern(opened[2].tokenizer), "llama3");
    size_t content_bytes = 0, bytes = 0;
    char *content = read_golden("tokenizer_ids.txt", &content_bytes), *rest = NULL;
    uint8_t text[TEXT_MOST];
    int lines = 0;
    for (char *line = strtok_r(content, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *numbers = line + strcspn(line, " ");
        if (*numbers != 0) *numbers++ = 0;
        if (strcmp(line, "text") == 0) bytes = from_hex(numbers, text);
        for (size_t k = 0; k < KINDS; k++) {
            if (strcmp(line, kinds[k]) != 0) continue;
            check_line(&opened[k], text, bytes, line, numbers);
            lines++;
        }
    }
    CHECK(lines >= 40 * KINDS && lines % KINDS == 0);
    free(content);
    for (size_t k = 0; k < KINDS; k++)
        close_pair(&opened[k]);
}

static void test_specials(void) {
    struct opened json = open_pair(FOLDER "tokenizer.json", NULL);
    struct opened ranks = open_pair(FOLDER "tokenizer.tiktoken,cl100k", NULL);
    CHECK_TEXT(tokenizer_pattern(ranks.tokenizer), "cl100k");
    CHECK_INT(tokenizer_vocab(json.tokenizer), RANKS + 1);
    CHECK_INT(tokenizer_vocab(ranks.tokenizer), RANKS + 1);
    CHECK_INT(tokenizer_eot(json.tokenizer), RANKS);
    CHECK_INT(tokenizer_eot(ranks.tokenizer), RANKS);
    const uint8_t *token = NULL;
    CHECK_INT(tokenizer_token(json.tokenizer, RANKS, &token), 13);
    CHECK(memcmp(token, "<|endoftext|>", 13) == 0);
    CHECK_INT(tokenizer_token(json.tokenizer, RANKS + 1, &token), 0);
    CHECK_INT(tokenizer_token(json.tokenizer, UINT32_MAX, &token), 0);
    /* In a text it is letters. */
    const uint32_t *ids = NULL;
    size_t count = 0;
    CHECK_INT(
        tokenizer_encode(json.encoder, (const uint8_t *)"<|endoftext|>", 13, true, &ids, &count),
        STATUS_OK);
    CHECK(count > 1);
    for (size_t i = 0; i < count; i++)
        CHECK(ids[i] < RANKS);
    CHECK(tokenizer_digest(json.tokenizer) != tokenizer_digest(ranks.tokenizer));
    close_pair(&json);
    close_pair(&ranks);
}

static void round_trip(struct opened *opened, const uint8_t *text, size_t bytes) {
    const uint32_t *ids = NULL;
    size_t count = 0;
    uint8_t *decoded = malloc(bytes + 1);
    CHECK(decoded != NULL);
    CHECK_INT(tokenizer_encode(opened->encoder, text, bytes, false, &ids, &count), STATUS_OK);
    const int32_t *signed_ids = (const int32_t *)ids;
    CHECK_INT(tokenizer_decode_bound(opened->tokenizer, signed_ids, count), bytes);
    CHECK_INT(tokenizer_decode(opened->tokenizer, signed_ids, count, decoded), bytes);
    CHECK(memcmp(decoded, text, bytes) == 0);
    free(decoded);
}

/* Random bytes, and random choices of bytes that make much valid and half-valid UTF-8. */
static void test_any_bytes_come_back(void) {
    static const uint8_t some[] = {' ', 'a', 'e', 't', '\n', 0xc3, 0xa9, 0xe2, 0x80, 0x99, 0xf0};
    static const char *const patterns[] = {"gpt2", "cl100k", "llama3", "o200k"};
    uint8_t text[600];
    struct random_stream random;
    random_open(&random, 7, RANDOM_SIMULATOR, 0);
    for (size_t p = 0; p < 4; p++) {
        struct opened opened = open_pair(FOLDER "tokenizer.tiktoken", patterns[p]);
        for (int round = 0; round < 300; round++) {
            size_t bytes = (size_t)random_below(&random, sizeof text);
            for (size_t i = 0; i < bytes; i++) {
                uint32_t draw = random_u32(&random);
                text[i] = round % 2 == 0 ? (uint8_t)draw : some[draw % sizeof some];
            }
            round_trip(&opened, text, bytes);
        }
        close_pair(&opened);
    }
}

/* Texts of a megabyte that are one piece, or nothing but spaces; and bytes that are no UTF-8. */
static void test_pathological(void) {
    static const char *const patterns[] = {"gpt2", "cl100k", "llama3", "o200k"};
    static const uint8_t fills[] = {'a', ' ', '\n', '=', '1', 'A', 0xff, 0x80};
    const size_t bytes = 1000000;
    uint8_t *text = malloc(bytes);
    CHECK(text != NULL);
    for (size_t p = 0; p < 4; p++) {
        struct opened opened = open_pair(FOLDER "tokenizer.tiktoken", patterns[p]);
        for (size_t f = 0; f < sizeof fills; f++) {
            memset(text, fills[f], bytes);
            round_trip(&opened, text, bytes);
        }
        for (size_t i = 0; i < bytes; i++)
            text[i] = (uint8_t) "server"[i % 6];
        round_trip(&opened, text, bytes);
        close_pair(&opened);
    }
    free(text);
}

/* By the definition: the lowest rank, the leftmost of equals, one merge at a time. */
static size_t merge_slowly(const struct bpe_pair *pairs, size_t pair_count, uint32_t *ids,
                           size_t count) {
    for (;;) {
        const struct bpe_pair *best = NULL;
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            for (size_t p = 0; p < pair_count; p++) {
                if (pairs[p].key != ((uint64_t)ids[i] << 32 | ids[i + 1])) continue;
                if (best != NULL && best->rank <= pairs[p].rank) continue;
                best = &pairs[p];
                best_at = i;
            }
        }
        if (best == NULL) return count;
        ids[best_at] = best->id;
        memmove(ids + best_at + 1, ids + best_at + 2, (count - best_at - 2) * sizeof *ids);
        count--;
    }
}

/* Random rules over an alphabet of three letters, and pieces around the length from which on the
 * heap is used. */
static void test_merges_by_definition(void) {
    enum { PAIRS = 40, LONGEST = 150 };
    struct random_stream random;
    random_open(&random, 11, RANDOM_SIMULATOR, 0);
    for (int round = 0; round < 60; round++) {
        struct bpe bpe = {0};
        struct bpe_scratch scratch = {0};
        struct bpe_pair pairs[PAIRS];
        size_t pair_count = 0;
        for (unsigned i = 0; i < 256; i++)
            bpe.byte_ids[i] = i % 3;
        for (uint32_t i = 0; i < PAIRS; i++) {
            /* Tokens so far are 0 .. i + 2; a pair that exists already stays as it is. */
            uint64_t key = random_below(&random, i + 3) << 32 | random_below(&random, i + 3);
            bool exists = false;
            for (size_t p = 0; p < pair_count; p++)
                exists = exists || pairs[p].key == key;
            uint32_t rank = (uint32_t)random_below(&random, 20);
            bpe_add(&bpe, (uint32_t)(key >> 32), (uint32_t)key, rank, i + 3);
            if (!exists)
                pairs[pair_count++] = (struct bpe_pair){.key = key, .rank = rank, .id = i + 3};
        }
        for (size_t bytes = 1; bytes <= LONGEST; bytes += 1 + bytes / 12) {
            uint8_t piece[LONGEST];
            uint32_t expected[LONGEST];
            for (size_t i = 0; i < bytes; i++) {
                piece[i] = (uint8_t)random_below(&random, 3);
                expected[i] = piece[i];
            }
            size_t count = merge_slowly(pairs, pair_count, expected, bytes);
            CHECK_INT(bpe_merge(&bpe, &scratch, piece, bytes), count);
            CHECK(memcmp(scratch.ids, expected, count * sizeof *expected) == 0);
        }
        bpe_scratch_free(&scratch);
        bpe_free(&bpe);
    }
}

/* All texts of the golden file in a row, cut wherever it is allowed. */
static void test_cuts_change_nothing(void) {
    static const char *const patterns[] = {"gpt2", "cl100k", "llama3", "o200k"};
    static uint8_t text[1 << 17];
    static uint32_t whole[1 << 17];
    size_t bytes = 0, content_bytes = 0;
    char *content = read_golden("make_tokenizer.py", &content_bytes);
    for (int copy = 0; copy < 3; copy++) {
        memcpy(text + bytes, content, content_bytes);
        bytes += content_bytes;
        bytes -= (size_t)copy + 1; // so that the copies do not meet at line ends
    }
    /* Where o200k goes on behind the newline. */
    memcpy(text + bytes, "end.\n/usr/x.\n//\ny", 18);
    bytes += 18;
    for (size_t p = 0; p < 4; p++) {
        struct opened opened = open_pair(FOLDER "tokenizer.tiktoken", patterns[p]);
        const uint32_t *ids = NULL;
        size_t count = 0, at = 0, cuts = 0, seen = 0;
        CHECK_INT(tokenizer_encode(opened.encoder, text, bytes, true, &ids, &count), STATUS_OK);
        size_t whole_count = count;
        memcpy(whole, ids, count * sizeof *ids);
        while (at < bytes) {
            size_t end = at + tokenizer_cut(text + at, bytes - at, 1);
            CHECK(end > at && end <= bytes);
            CHECK_INT(tokenizer_encode(opened.encoder, text + at, end - at, false, &ids, &count),
                      STATUS_OK);
            CHECK(seen + count <= whole_count);
            CHECK(memcmp(whole + seen, ids, count * sizeof *ids) == 0);
            seen += count;
            at = end;
            cuts++;
        }
        CHECK_INT(seen, whole_count);
        CHECK(cuts > 50);
        close_pair(&opened);
    }
    free(content);
}

static void refuse_json(const char *content, const char *from, const char *to, enum status status,
                        const char *reason) {
    struct tokenizer *tokenizer = NULL;
    char *text = replaced(content, from, to);
    log_restart();
    CHECK_INT(tokenizer_parse_json(&tokenizer, text, strlen(text), "x.json"), status);
    EXPECT_LOG(reason, 1);
    free(text);
}

static void test_other_kinds_are_refused(void) {
    size_t bytes = 0;
    char *json = read_golden("tokenizer.json", &bytes);
    char *llama3 = read_golden("tokenizer_llama3.json", &bytes);
    log_capture();
    refuse_json(json, "\"BPE\"", "\"Unigram\"", STATUS_UNSUPPORTED, "model.type is not BPE");
    refuse_json(json, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}",
                STATUS_UNSUPPORTED, "normalizer");
    refuse_json(json, "\"dropout\": null", "\"dropout\": 0.1", STATUS_UNSUPPORTED, "dropout");
    refuse_json(json, "\"byte_fallback\": false", "\"byte_fallback\": true", STATUS_UNSUPPORTED,
                "byte_fallback");
    refuse_json(json, "\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"",
                STATUS_UNSUPPORTED, "end_of_word_suffix");
    refuse_json(json, "\"use_regex\": true", "\"use_regex\": false", STATUS_UNSUPPORTED,
                "use_regex");
    refuse_json(json, "\"ByteLevel\"", "\"Whitespace\"", STATUS_UNSUPPORTED, "pre_tokenizer");
    refuse_json(json, "\"special\": true", "\"special\": false", STATUS_UNSUPPORTED, "not special");
    refuse_json(llama3, "{1,3}", "{1,2}", STATUS_UNSUPPORTED, "none of gpt2");
    refuse_json(llama3, "\"Isolated\"", "\"Removed\"", STATUS_UNSUPPORTED, "Isolated");
    refuse_json(json, "\"a\": ", "\"\xe9\x9f\xb3\": ", STATUS_UNSUPPORTED, "byte alphabet");
    refuse_json(json, "\"id\": 600", "\"id\": 99999999", STATUS_CORRUPT, "no number below");
    refuse_json(json, "\"id\": 600", "\"id\": 999999", STATUS_CORRUPT, "holes");
    refuse_json(json, "\"merges\": [", "\"merges\": [\"q zz\",", STATUS_CORRUPT, "number 0");
    refuse_json(json, "\"version\"", "version", STATUS_CORRUPT, "x.json");
    free(json);
    free(llama3);
}

static void refuse_ranks(const char *content, const char *from, const char *to, const char *pattern,
                         enum status status, const char *reason) {
    struct tokenizer *tokenizer = NULL;
    char *text = replaced(content, from, to);
    log_restart();
    CHECK_INT(tokenizer_parse_tiktoken(&tokenizer, text, strlen(text), pattern, "x"), status);
    EXPECT_LOG(reason, 1);
    free(text);
}

static void test_damaged_ranks(void) {
    size_t bytes = 0;
    char *ranks = read_golden("tokenizer.tiktoken", &bytes);
    refuse_ranks(ranks, "IQ==", "IQ==", NULL, STATUS_INVALID, "not published");
    refuse_ranks(ranks, "IQ==", "IQ==", "words", STATUS_INVALID, "no known split pattern");
    refuse_ranks(ranks, "IQ==", "I?==", "gpt2", STATUS_CORRUPT, "x: line 1: not base64");
    refuse_ranks(ranks, "IQ==", "IQ=", "gpt2", STATUS_CORRUPT, "not base64");
    refuse_ranks(ranks, "IQ==", "Ig==", "gpt2", STATUS_CORRUPT, "line 2: the same token again");
    refuse_ranks(ranks, "IQ== 0", "IQ== 1", "gpt2", STATUS_CORRUPT, "each once");
    refuse_ranks(ranks, "IQ== 0", "IQ== 600", "gpt2", STATUS_CORRUPT, "each once");
    refuse_ranks(ranks, "IQ== 0", "IQ==0", "gpt2", STATUS_CORRUPT, "not base64");
    refuse_ranks(ranks, "IQ== 0", "IQ== 0 ", "gpt2", STATUS_CORRUPT, "expected a space and a rank");
    /* A byte without a token. */
    refuse_ranks(ranks, "IQ== 0", "ISEhISEh 0", "gpt2", STATUS_CORRUPT, "byte 0x21 has no token");
    refuse_ranks("a 0\n", "a", "YQ==", "gpt2", STATUS_CORRUPT, "no tiktoken vocabulary");
    struct tokenizer *tokenizer = NULL;
    log_restart();
    CHECK_INT(tokenizer_open(&tokenizer, FOLDER "tokenizer.json", "cl100k"), STATUS_INVALID);
    EXPECT_LOG("splits by gpt2, not by cl100k", 1);
    CHECK_INT(tokenizer_open(&tokenizer, FOLDER "none.json", NULL), STATUS_IO);
    free(ranks);
}

int main(void) {
    TEST_RUN(test_golden_ids);
    TEST_RUN(test_specials);
    TEST_RUN(test_any_bytes_come_back);
    TEST_RUN(test_pathological);
    TEST_RUN(test_merges_by_definition);
    TEST_RUN(test_cuts_change_nothing);
    TEST_RUN(test_other_kinds_are_refused);
    TEST_RUN(test_damaged_ranks);
    return 0;
}
