#include "worker/tokenizer.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* What English repeats most fits: pieces of few bytes, and few tokens each. */
#define CACHE_SLOTS ((uint64_t)1 << 15)
#define CACHE_BYTES 24
#define CACHE_IDS   6
#define IDS_FIRST   ((size_t)1 << 16)

struct cached {
    uint8_t bytes, count; /* bytes 0: free */
    uint8_t text[CACHE_BYTES];
    uint32_t ids[CACHE_IDS];
};

struct tokenizer_encoder {
    const struct tokenizer *tokenizer;
    struct split_cursor cursor;
    struct bpe_scratch scratch;
    struct cached *cache; /* [CACHE_SLOTS] */
    uint32_t *ids;        /* [capacity] */
    size_t count, capacity;
    uint8_t *spaced; /* [spaced_bytes] a copy of a text with its space */
    size_t spaced_bytes;
};

/* ---- building ---- */

struct tokenizer *tokenizer_new(uint32_t vocab, size_t text_bytes) {
    ASSERT(vocab <= TOKENIZER_VOCAB_MAX);
    struct tokenizer *tokenizer = memory_zeroed(1, sizeof(*tokenizer));
    tokenizer->vocab = vocab;
    tokenizer->eot = TOKENIZER_NONE;
    tokenizer->text = memory_zeroed(text_bytes + 1, 1);
    tokenizer->text_bytes = text_bytes;
    tokenizer->offsets = memory_zeroed((size_t)vocab + 1, sizeof(*tokenizer->offsets));
    tokenizer->lengths = memory_zeroed((size_t)vocab + 1, sizeof(*tokenizer->lengths));
    tokenizer->slots = 1024;
    while (tokenizer->slots < 2 * (uint64_t)vocab)
        tokenizer->slots *= 2;
    tokenizer->index = memory_zeroed((size_t)tokenizer->slots, sizeof(*tokenizer->index));
    memset(tokenizer->index, 0xff, (size_t)tokenizer->slots * sizeof(*tokenizer->index));
    return tokenizer;
}

void tokenizer_close(struct tokenizer *tokenizer) {
    if (tokenizer == NULL) return;
    if (tokenizer->split.code != NULL) split_close(&tokenizer->split);
    bpe_free(&tokenizer->bpe);
    free(tokenizer->text);
    free(tokenizer->offsets);
    free(tokenizer->lengths);
    free(tokenizer->index);
    free(tokenizer);
}

/* The slot of these bytes, or the free one where they would be. */
static uint32_t *probe(const struct tokenizer *tokenizer, const uint8_t *text, size_t bytes) {
    uint64_t slot = checksum_xxh3(text, bytes) & (tokenizer->slots - 1);
    for (;;) {
        uint32_t id = tokenizer->index[slot];
        if (id == TOKENIZER_NONE) break;
        if (tokenizer->lengths[id] == bytes &&
            memcmp(tokenizer->text + tokenizer->offsets[id], text, bytes) == 0)
            break;
        slot = (slot + 1) & (tokenizer->slots - 1);
    }
    return &tokenizer->index[slot];
}

bool tokenizer_add(struct tokenizer *tokenizer, uint32_t id, const uint8_t *text, size_t bytes,
                   bool special) {
    ASSERT(id < tokenizer->vocab && tokenizer->lengths[id] == 0 && bytes >= 1);
    ASSERT(bytes <= tokenizer->text_bytes - tokenizer->text_used && bytes < UINT32_MAX);
    uint32_t *slot = special ? NULL : probe(tokenizer, text, bytes);
    if (slot != NULL && *slot != TOKENIZER_NONE) return false;
    memcpy(tokenizer->text + tokenizer->text_used, text, bytes);
    tokenizer->offsets[id] = tokenizer->text_used;
    tokenizer->lengths[id] = (uint32_t)bytes;
    tokenizer->text_used += bytes;
    if (slot != NULL) *slot = id;
    return true;
}

uint32_t tokenizer_find(const struct tokenizer *tokenizer, const uint8_t *text, size_t bytes) {
    return *probe(tokenizer, text, bytes);
}

enum status tokenizer_complete(struct tokenizer *tokenizer, const char *pattern, const char *path) {
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t text = (uint8_t)byte;
        uint32_t id = tokenizer_find(tokenizer, &text, 1);
        if (id == TOKENIZER_NONE) {
            log_error("%s: byte 0x%02x has no token: not a byte-level vocabulary", path, byte);
            return STATUS_CORRUPT;
        }
        tokenizer->bpe.byte_ids[byte] = id;
    }
    return split_open(&tokenizer->split, pattern);
}

/* ---- asking ---- */

int64_t tokenizer_vocab(const struct tokenizer *tokenizer) {
    return tokenizer->vocab;
}

uint32_t tokenizer_eot(const struct tokenizer *tokenizer) {
    return tokenizer->eot;
}

const char *tokenizer_pattern(const struct tokenizer *tokenizer) {
    return tokenizer->split.name;
}

uint64_t tokenizer_digest(const struct tokenizer *tokenizer) {
    return tokenizer->digest;
}

size_t tokenizer_token(const struct tokenizer *tokenizer, uint32_t id, const uint8_t **text) {
    if (id >= tokenizer->vocab) return 0;
    *text = tokenizer->text + tokenizer->offsets[id];
    return tokenizer->lengths[id];
}

size_t tokenizer_decode_bound(const struct tokenizer *tokenizer, const int32_t *ids, size_t count) {
    const uint8_t *token = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += tokenizer_token(tokenizer, (uint32_t)ids[i], &token);
    return bytes;
}

size_t tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count,
                        uint8_t *text) {
    const uint8_t *token = NULL;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = tokenizer_token(tokenizer, (uint32_t)ids[i], &token);
        if (bytes > 0) memcpy(text + at, token, bytes);
        at += bytes;
    }
    return at;
}

/* ---- encoding ---- */

enum status tokenizer_encoder_open(struct tokenizer_encoder **encoder,
                                   const struct tokenizer *tokenizer) {
    struct split_cursor cursor;
    TRY(split_cursor_open(&cursor));
    struct tokenizer_encoder *opened = memory_zeroed(1, sizeof(*opened));
    opened->tokenizer = tokenizer;
    opened->cursor = cursor;
    opened->cache = memory_zeroed((size_t)CACHE_SLOTS, sizeof(*opened->cache));
    opened->capacity = IDS_FIRST;
    opened->ids = memory_zeroed(opened->capacity, sizeof(*opened->ids));
    *encoder = opened;
    return STATUS_OK;
}

void tokenizer_encoder_close(struct tokenizer_encoder *encoder) {
    if (encoder == NULL) return;
    split_cursor_close(&encoder->cursor);
    bpe_scratch_free(&encoder->scratch);
    free(encoder->cache);
    free(encoder->ids);
    free(encoder->spaced);
    free(encoder);
}

static void append(struct tokenizer_encoder *encoder, const uint32_t *ids, size_t count) {
    if (count > encoder->capacity - encoder->count) {
        size_t capacity = encoder->capacity;
        while (count > capacity - encoder->count)
            capacity *= 2;
        uint32_t *more = memory_zeroed(capacity, sizeof(*more));
        memcpy(more, encoder->ids, encoder->count * sizeof(*more));
        free(encoder->ids);
        encoder->ids = more;
        encoder->capacity = capacity;
    }
    memcpy(encoder->ids + encoder->count, ids, count * sizeof(*ids));
    encoder->count += count;
}

/* Without the cache: its tokens -> scratch.ids; returns how many. */
static size_t merge_piece(struct tokenizer_encoder *encoder, const uint8_t *piece, size_t bytes) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    size_t count = 0;
    uint32_t whole =
        tokenizer->whole_first ? tokenizer_find(tokenizer, piece, bytes) : TOKENIZER_NONE;
    if (whole == TOKENIZER_NONE)
        count = bpe_merge(&tokenizer->bpe, &encoder->scratch, piece, bytes);
    append(encoder, whole == TOKENIZER_NONE ? encoder->scratch.ids : &whole,
           whole == TOKENIZER_NONE ? count : 1);
    return whole == TOKENIZER_NONE ? count : 1;
}

static void encode_piece(struct tokenizer_encoder *encoder, const uint8_t *piece, size_t bytes) {
    if (bytes > CACHE_BYTES) {
        (void)merge_piece(encoder, piece, bytes);
        return;
    }
    struct cached *cached = &encoder->cache[checksum_xxh3(piece, bytes) & (CACHE_SLOTS - 1)];
    if (cached->bytes == bytes && memcmp(cached->text, piece, bytes) == 0) {
        append(encoder, cached->ids, cached->count);
        return;
    }
    size_t count = merge_piece(encoder, piece, bytes);
    if (count > CACHE_IDS) return;
    cached->bytes = (uint8_t)bytes;
    cached->count = (uint8_t)count;
    memcpy(cached->text, piece, bytes);
    memcpy(cached->ids, encoder->ids + encoder->count - count, count * sizeof(uint32_t));
}

/* A copy of the text with a space before it. */
static const uint8_t *add_space(struct tokenizer_encoder *encoder, const uint8_t *text,
                                size_t bytes) {
    if (encoder->spaced_bytes < bytes + 1) {
        free(encoder->spaced);
        encoder->spaced = memory_zeroed(bytes + 1, 1);
        encoder->spaced_bytes = bytes + 1;
    }
    encoder->spaced[0] = ' ';
    memcpy(encoder->spaced + 1, text, bytes);
    return encoder->spaced;
}

enum status tokenizer_encode(struct tokenizer_encoder *encoder, const uint8_t *text, size_t bytes,
                             bool starts, const uint32_t **ids, size_t *count) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    const uint8_t *piece = NULL;
    size_t piece_bytes = 0;
    enum status status = STATUS_OK;
    ASSERT(bytes <= TOKENIZER_TEXT_MAX);
    if (tokenizer->prefix_space && starts && bytes > 0 && text[0] != ' ') {
        text = add_space(encoder, text, bytes);
        bytes++;
    }
    encoder->count = 0;
    split_begin(&encoder->cursor, text, bytes);
    while ((status = split_next(&tokenizer->split, &encoder->cursor, &piece, &piece_bytes)) ==
           STATUS_OK)
        encode_piece(encoder, piece, piece_bytes);
    if (status != STATUS_AGAIN) return status;
    *ids = encoder->ids;
    *count = encoder->count;
    return STATUS_OK;
}

static bool is_visible(uint8_t c) {
    return c > ' ' && c < 0x7f;
}

/* All known expressions end a piece behind a newline that stands between visible characters, and
 * none of them sees the first of these from before the cut, or the last from behind it. But o200k's
 * goes on with a slash. */
size_t tokenizer_cut(const uint8_t *text, size_t bytes, size_t from) {
    for (size_t at = from < 2 ? 2 : from; at < bytes; at++) {
        const uint8_t *newline = memchr(text + at - 1, '\n', bytes - at);
        if (newline == NULL) break;
        at = (size_t)(newline - text) + 1;
        if (is_visible(newline[-1]) && is_visible(newline[1]) && newline[1] != '/') return at;
    }
    return bytes;
}
