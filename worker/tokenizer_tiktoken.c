#include "base/log.h"
#include "base/memory.h"
#include "worker/tokenizer_internal.h"
#include "worker/tokenizer_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES_MAX 512

/* What tiktoken has beside the ranks, by their number (tiktoken_ext/openai_public.py). */
static const struct {
    uint32_t ranks;
    const char *pattern;
    uint32_t eot, vocab;
} published[] = {
    {50256, "gpt2", 50256, 50257},
    {100256, "cl100k", 100257, 100277},
    {199998, "o200k", 199999, 200019},
};

struct cursor {
    const char *text;
    size_t bytes, at;
    uint64_t line; /* from 1 */
    const char *path;
};

static enum status refuse(const struct cursor *cursor, const char *reason) {
    log_error("%s: line %" PRIu64 ": %s", cursor->path, cursor->line, reason);
    return STATUS_CORRUPT;
}

static int base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *digit = c != 0 ? strchr(digits, c) : NULL;
    return digit != NULL ? (int)(digit - digits) : -1;
}

/* The word before the space (RFC 4648, section 4) -> token [TOKEN_BYTES_MAX]. */
static enum status read_base64(struct cursor *cursor, uint8_t *token, size_t *token_bytes) {
    uint32_t bits = 0;
    size_t digits = 0, padding = 0, bytes = 0;
    for (; cursor->at < cursor->bytes && cursor->text[cursor->at] != ' '; cursor->at++) {
        char c = cursor->text[cursor->at];
        int digit = base64_digit(c);
        if (c == '=') {
            padding++;
            continue;
        }
        if (digit < 0 || padding > 0) return refuse(cursor, "not base64");
        bits = bits << 6 | (uint32_t)digit;
        if (++digits % 4 == 1) continue;
        if (bytes == TOKEN_BYTES_MAX) return refuse(cursor, "a token of more than 512 bytes");
        token[bytes++] = (uint8_t)(bits >> (6 - 2 * ((digits - 1) % 4)));
    }
    if (digits % 4 == 1 || (digits + padding) % 4 != 0) return refuse(cursor, "not base64");
    if (bytes == 0) return refuse(cursor, "an empty token");
    *token_bytes = bytes;
    return STATUS_OK;
}

/* " RANK" and the line's end. */
static enum status read_rank(struct cursor *cursor, uint32_t *rank) {
    uint64_t value = 0;
    size_t digits = 0;
    if (cursor->at == cursor->bytes) return refuse(cursor, "expected a space and a rank");
    cursor->at++;
    for (; cursor->at < cursor->bytes && digits < 9; cursor->at++, digits++) {
        char c = cursor->text[cursor->at];
        if (c < '0' || c > '9') break;
        value = value * 10 + (uint64_t)(c - '0');
    }
    if (cursor->at < cursor->bytes && cursor->text[cursor->at] == '\r') cursor->at++;
    bool ends = cursor->at == cursor->bytes || cursor->text[cursor->at] == '\n';
    if (digits == 0 || !ends) return refuse(cursor, "expected a space and a rank");
    if (cursor->at < cursor->bytes) cursor->at++;
    *rank = (uint32_t)value;
    return STATUS_OK;
}

static uint32_t count_lines(const char *text, size_t bytes) {
    uint64_t lines = 0;
    for (const char *at = text; at < text + bytes; lines++) {
        const char *end = memchr(at, '\n', (size_t)(text + bytes - at));
        at = end != NULL ? end + 1 : text + bytes;
    }
    return lines < TOKENIZER_VOCAB_MAX ? (uint32_t)lines : TOKENIZER_VOCAB_MAX;
}

static enum status read_ranks(struct tokenizer *tokenizer, struct cursor *cursor, uint32_t ranks) {
    while (cursor->at < cursor->bytes) {
        uint8_t token[TOKEN_BYTES_MAX];
        size_t bytes = 0;
        uint32_t rank = 0;
        cursor->line++;
        TRY(read_base64(cursor, token, &bytes));
        TRY(read_rank(cursor, &rank));
        if (rank >= ranks || tokenizer->lengths[rank] != 0)
            return refuse(cursor, "ranks must be 0, 1, ... to the number of lines, each once");
        if (!tokenizer_add(tokenizer, rank, token, bytes, false))
            return refuse(cursor, "the same token again");
    }
    return STATUS_OK;
}

/* Every way to cut a token in two tokens is a pair that merges, at the token's rank. */
static void add_pairs(struct tokenizer *tokenizer, uint32_t ranks) {
    for (uint32_t id = 0; id < ranks; id++) {
        const uint8_t *text = tokenizer->text + tokenizer->offsets[id];
        size_t bytes = tokenizer->lengths[id];
        for (size_t cut = 1; cut < bytes; cut++) {
            uint32_t left = tokenizer_find(tokenizer, text, cut);
            uint32_t right = tokenizer_find(tokenizer, text + cut, bytes - cut);
            if (left != TOKENIZER_NONE && right != TOKENIZER_NONE)
                bpe_add(&tokenizer->bpe, left, right, id, id);
        }
    }
}

static enum status fill(struct tokenizer *tokenizer, struct cursor *cursor, uint32_t ranks,
                        const char *pattern) {
    static const uint8_t eot[] = "<|endoftext|>";
    TRY(read_ranks(tokenizer, cursor, ranks));
    (void)tokenizer_add(tokenizer, tokenizer->eot, eot, sizeof(eot) - 1, true);
    add_pairs(tokenizer, ranks);
    tokenizer->whole_first = true;
    return tokenizer_complete(tokenizer, pattern, cursor->path);
}

enum status tokenizer_parse_tiktoken(struct tokenizer **tokenizer, const char *text, size_t bytes,
                                     const char *pattern, const char *path) {
    struct cursor cursor = {.text = text, .bytes = bytes, .path = path};
    uint32_t ranks = count_lines(text, bytes);
    if (ranks < 256 || ranks >= TOKENIZER_VOCAB_MAX) {
        log_error("%s: %" PRIu32 " lines are no tiktoken vocabulary", path, ranks);
        return STATUS_CORRUPT;
    }
    bool given = pattern != NULL && pattern[0] != '\0';
    uint32_t eot = ranks, vocab = ranks + 1;
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        if (published[i].ranks != ranks) continue;
        if (!given) pattern = published[i].pattern;
        eot = published[i].eot;
        vocab = published[i].vocab;
        given = true;
    }
    if (!given) {
        log_error("%s: a vocabulary of %" PRIu32 " ranks that is not published: give its split "
                  "pattern (" SPLIT_NAMES "), in prepare as --pattern, else as FILE,PATTERN",
                  path, ranks);
        return STATUS_INVALID;
    }
    struct tokenizer *opened = tokenizer_new(vocab, bytes + 16);
    opened->eot = eot;
    enum status status = fill(opened, &cursor, ranks, pattern);
    if (status == STATUS_OK) {
        *tokenizer = opened;
    } else {
        tokenizer_close(opened);
    }
    return status;
}
