#include "worker/tokenizer_read.h"

#include "base/checksum.h"
#include "base/files.h"
#include "base/json_read.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/tokenizer_internal.h"
#include "worker/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX    ((uint32_t)1 << 25)
#define LETTERS      324 /* code points below this stand for bytes */
#define NO_BYTE      UINT16_MAX
#define WORD_MAX     4096 /* bytes of a token's name */
#define HOLES_MAX    65536
#define PATH_MAX_OUR 4096

/* A tokenizer.json on its way. */
struct reader {
    struct json_tree tree;
    struct tokenizer *tokenizer;
    const char *path;
    uint16_t byte_of[LETTERS]; /* of the code points of GPT-2's byte alphabet */
    bool prefix_space;
    const char *pattern;
};

/* GPT-2 writes bytes as visible letters: those that are visible in Latin-1 as themselves, the n-th
 * of the others as U+0100 + n. */
static void make_alphabet(uint16_t byte_of[LETTERS]) {
    uint32_t others = 0;
    for (uint32_t i = 0; i < LETTERS; i++)
        byte_of[i] = NO_BYTE;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        byte_of[visible ? byte : 256 + others++] = (uint16_t)byte;
    }
}

/* name [length] in letters -> its bytes, at most length. False: a letter of another alphabet. */
static bool to_bytes(const struct reader *reader, const char *name, size_t length, uint8_t *bytes,
                     size_t *count) {
    const uint8_t *at = (const uint8_t *)name, *end = at + length;
    size_t written = 0;
    while (at < end) {
        size_t letter = utf8_length(at, (size_t)(end - at));
        uint32_t code = letter > 0 ? utf8_decode(at, letter) : LETTERS;
        if (code >= LETTERS || reader->byte_of[code] == NO_BYTE) return false;
        bytes[written++] = (uint8_t)reader->byte_of[code];
        at += letter;
    }
    *count = written;
    return true;
}

static enum status unsupported(const struct reader *reader, const char *what) {
    log_error("%s: %s; only byte-level BPE vocabularies without it can be used", reader->path,
              what);
    return STATUS_UNSUPPORTED;
}

static enum status damaged(const struct reader *reader, const char *what) {
    log_error("%s: %s", reader->path, what);
    return STATUS_CORRUPT;
}

static enum json_kind kind_of(const struct reader *reader, uint32_t node) {
    return node == JSON_NONE ? JSON_NULL : reader->tree.nodes[node].kind;
}

static bool is_text(const struct reader *reader, uint32_t node, const char *text) {
    return kind_of(reader, node) == JSON_TEXT &&
           strcmp(json_read_text(&reader->tree, node), text) == 0;
}

static uint32_t member(const struct reader *reader, uint32_t object, const char *key) {
    if (kind_of(reader, object) != JSON_OBJECT) return JSON_NONE;
    return json_read_member(&reader->tree, object, key);
}

static bool absent(const struct reader *reader, uint32_t node) {
    return kind_of(reader, node) == JSON_NULL || is_text(reader, node, "");
}

/* What of the model would make other tokens than plain merging. */
static enum status check_model(const struct reader *reader, uint32_t model) {
    if (!is_text(reader, member(reader, model, "type"), "BPE"))
        return unsupported(reader, "model.type is not BPE");
    if (kind_of(reader, member(reader, model, "byte_fallback")) == JSON_TRUE)
        return unsupported(reader, "model.byte_fallback is set");
    if (!absent(reader, member(reader, model, "continuing_subword_prefix")))
        return unsupported(reader, "model.continuing_subword_prefix is set");
    if (!absent(reader, member(reader, model, "end_of_word_suffix")))
        return unsupported(reader, "model.end_of_word_suffix is set");
    double dropout = 0;
    uint32_t node = member(reader, model, "dropout");
    if (kind_of(reader, node) == JSON_NUMBER &&
        (!json_read_real(&reader->tree, node, &dropout) || dropout != 0))
        return unsupported(reader, "model.dropout is set");
    return STATUS_OK;
}

/* A ByteLevel step; `alone`: it also splits. */
static enum status check_byte_level(struct reader *reader, uint32_t step, bool alone) {
    if (!is_text(reader, member(reader, step, "type"), "ByteLevel"))
        return unsupported(reader, "pre_tokenizer is neither ByteLevel nor Split and ByteLevel");
    bool regex = kind_of(reader, member(reader, step, "use_regex")) != JSON_FALSE;
    bool space = kind_of(reader, member(reader, step, "add_prefix_space")) == JSON_TRUE;
    if (regex != alone)
        return unsupported(reader, alone ? "pre_tokenizer ByteLevel does not split (use_regex)"
                                         : "pre_tokenizer splits twice (use_regex)");
    if (space && !alone)
        return unsupported(reader, "pre_tokenizer adds a space to every piece (add_prefix_space)");
    reader->prefix_space = space;
    return STATUS_OK;
}

static enum status check_pre_tokenizer(struct reader *reader, uint32_t node) {
    if (is_text(reader, member(reader, node, "type"), "ByteLevel")) {
        reader->pattern = split_known("gpt2");
        return check_byte_level(reader, node, true);
    }
    uint32_t steps = member(reader, node, "pretokenizers");
    if (!is_text(reader, member(reader, node, "type"), "Sequence") ||
        kind_of(reader, steps) != JSON_ARRAY || reader->tree.nodes[steps].length != 2)
        return unsupported(reader, "pre_tokenizer is neither ByteLevel nor Split and ByteLevel");
    uint32_t split = steps + 1, byte_level = reader->tree.nodes[split].next;
    uint32_t regex = member(reader, member(reader, split, "pattern"), "Regex");
    if (!is_text(reader, member(reader, split, "type"), "Split") ||
        !is_text(reader, member(reader, split, "behavior"), "Isolated") ||
        kind_of(reader, member(reader, split, "invert")) == JSON_TRUE ||
        kind_of(reader, regex) != JSON_TEXT)
        return unsupported(reader, "pre_tokenizer does not begin with a Split, Isolated, by Regex");
    reader->pattern = split_known(json_read_text(&reader->tree, regex));
    if (reader->pattern == NULL)
        return unsupported(reader,
                           "pre_tokenizer splits by an expression that is none of " SPLIT_NAMES);
    return check_byte_level(reader, byte_level, false);
}

/* The id of a member's value, or of an added token. */
static bool read_id(const struct reader *reader, uint32_t node, uint32_t limit, uint32_t *id) {
    int64_t value = -1;
    if (kind_of(reader, node) != JSON_NUMBER || !json_read_int(&reader->tree, node, &value) ||
        value < 0 || value >= limit)
        return false;
    *id = (uint32_t)value;
    return true;
}

/* One more than the greatest id that is named. Holes are allowed, but not without measure. */
static enum status measure(const struct reader *reader, uint32_t vocab, uint32_t added,
                           uint32_t *size) {
    const struct json_node *nodes = reader->tree.nodes;
    uint64_t named = nodes[vocab].length, most = 0;
    uint32_t id = 0;
    for (uint32_t key = vocab + 1; key < nodes[vocab].next; key = nodes[key + 1].next) {
        if (!read_id(reader, key + 1, TOKENIZER_VOCAB_MAX, &id))
            return damaged(reader, "model.vocab has an id that is no number below 16777216");
        most = id > most ? id : most;
    }
    if (kind_of(reader, added) == JSON_ARRAY) {
        named += nodes[added].length;
        for (uint32_t token = added + 1; token < nodes[added].next; token = nodes[token].next) {
            if (!read_id(reader, member(reader, token, "id"), TOKENIZER_VOCAB_MAX, &id))
                return damaged(reader, "added_tokens has an id that is no number below 16777216");
            most = id > most ? id : most;
        }
    }
    if (most >= named + HOLES_MAX) return damaged(reader, "ids have too large holes");
    *size = (uint32_t)most + 1;
    return STATUS_OK;
}

/* Does the array of added tokens name this id? */
static bool is_added(const struct reader *reader, const uint8_t *added_ids, uint32_t id) {
    return id < reader->tokenizer->vocab && added_ids[id] != 0;
}

static enum status add_vocab(struct reader *reader, uint32_t vocab, const uint8_t *added_ids) {
    const struct json_node *nodes = reader->tree.nodes;
    struct tokenizer *tokenizer = reader->tokenizer;
    for (uint32_t key = vocab + 1; key < nodes[vocab].next; key = nodes[key + 1].next) {
        const char *name = json_read_text(&reader->tree, key);
        uint8_t bytes[WORD_MAX];
        uint32_t id = 0;
        size_t count = 0;
        (void)read_id(reader, key + 1, tokenizer->vocab, &id);
        /* Special tokens are often in both lists. */
        if (is_added(reader, added_ids, id)) continue;
        if (nodes[key].length == 0 || nodes[key].length > WORD_MAX)
            return damaged(reader, "model.vocab has a token that is empty or too long");
        if (!to_bytes(reader, name, nodes[key].length, bytes, &count)) {
            log_error("%s: token %" PRIu32 " is not written in the byte alphabet: only byte-level "
                      "BPE vocabularies can be used",
                      reader->path, id);
            return STATUS_UNSUPPORTED;
        }
        if (tokenizer->lengths[id] != 0 || !tokenizer_add(tokenizer, id, bytes, count, false))
            return damaged(reader, "model.vocab has one id twice");
    }
    return STATUS_OK;
}

/* Marks the ids of the added tokens, and takes their texts. */
static enum status add_specials(struct reader *reader, uint32_t added, uint8_t *added_ids) {
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    const struct json_node *nodes = reader->tree.nodes;
    size_t best = sizeof(ends) / sizeof(ends[0]);
    if (kind_of(reader, added) == JSON_NULL) return STATUS_OK;
    if (kind_of(reader, added) != JSON_ARRAY) return damaged(reader, "added_tokens is no list");
    for (uint32_t token = added + 1; token < nodes[added].next; token = nodes[token].next) {
        uint32_t content = member(reader, token, "content"), id = 0;
        (void)read_id(reader, member(reader, token, "id"), reader->tokenizer->vocab, &id);
        if (kind_of(reader, content) != JSON_TEXT || nodes[content].length == 0)
            return damaged(reader, "added_tokens has one without content");
        if (kind_of(reader, member(reader, token, "special")) != JSON_TRUE)
            return unsupported(reader, "added_tokens has one that is not special");
        if (added_ids[id] != 0) return damaged(reader, "added_tokens has one id twice");
        added_ids[id] = 1;
        const char *text = json_read_text(&reader->tree, content);
        (void)tokenizer_add(reader->tokenizer, id, (const uint8_t *)text, nodes[content].length,
                            true);
        for (size_t i = 0; i < best; i++) {
            if (strcmp(text, ends[i]) != 0) continue;
            reader->tokenizer->eot = id;
            best = i;
        }
    }
    return STATUS_OK;
}

/* The two names of a merge: "a b", or ["a", "b"]. */
static bool merge_names(const struct reader *reader, uint32_t node, const char *names[2],
                        size_t lengths[2]) {
    const struct json_node *nodes = reader->tree.nodes;
    if (nodes[node].kind == JSON_TEXT) {
        names[0] = json_read_text(&reader->tree, node);
        const char *space = strchr(names[0], ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) return false;
        names[1] = space + 1;
        lengths[0] = (size_t)(space - names[0]);
        lengths[1] = nodes[node].length - lengths[0] - 1;
        return true;
    }
    if (nodes[node].kind != JSON_ARRAY || nodes[node].length != 2) return false;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t part = i == 0 ? node + 1 : nodes[node + 1].next;
        if (nodes[part].kind != JSON_TEXT) return false;
        names[i] = json_read_text(&reader->tree, part);
        lengths[i] = nodes[part].length;
    }
    return true;
}

static bool add_merge(struct reader *reader, uint32_t node, uint32_t rank) {
    struct tokenizer *tokenizer = reader->tokenizer;
    const char *names[2] = {NULL, NULL};
    size_t lengths[2] = {0, 0}, left = 0, right = 0;
    uint8_t bytes[2 * WORD_MAX];
    if (!merge_names(reader, node, names, lengths) || lengths[0] == 0 || lengths[1] == 0 ||
        lengths[0] > WORD_MAX || lengths[1] > WORD_MAX ||
        !to_bytes(reader, names[0], lengths[0], bytes, &left) ||
        !to_bytes(reader, names[1], lengths[1], bytes + left, &right))
        return false;
    uint32_t ids[3] = {tokenizer_find(tokenizer, bytes, left),
                       tokenizer_find(tokenizer, bytes + left, right),
                       tokenizer_find(tokenizer, bytes, left + right)};
    if (ids[0] == TOKENIZER_NONE || ids[1] == TOKENIZER_NONE || ids[2] == TOKENIZER_NONE)
        return false;
    bpe_add(&tokenizer->bpe, ids[0], ids[1], rank, ids[2]);
    return true;
}

static enum status add_merges(struct reader *reader, uint32_t merges) {
    const struct json_node *nodes = reader->tree.nodes;
    uint32_t rank = 0;
    if (kind_of(reader, merges) != JSON_ARRAY) return damaged(reader, "model.merges is no list");
    for (uint32_t merge = merges + 1; merge < nodes[merges].next; merge = nodes[merge].next) {
        if (!add_merge(reader, merge, rank)) {
            log_error("%s: model.merges, number %" PRIu32
                      ": not two tokens of the vocabulary that make a third",
                      reader->path, rank);
            return STATUS_CORRUPT;
        }
        rank++;
    }
    return STATUS_OK;
}

static enum status build(struct reader *reader, size_t bytes) {
    uint32_t model = member(reader, 0, "model"), added = member(reader, 0, "added_tokens");
    uint32_t vocab = member(reader, model, "vocab"), size = 0;
    if (kind_of(reader, model) != JSON_OBJECT) return damaged(reader, "has no model");
    if (kind_of(reader, member(reader, 0, "normalizer")) != JSON_NULL)
        return unsupported(reader, "it has a normalizer");
    TRY(check_model(reader, model));
    TRY(check_pre_tokenizer(reader, member(reader, 0, "pre_tokenizer")));
    if (kind_of(reader, vocab) != JSON_OBJECT) return damaged(reader, "model.vocab is no object");
    TRY(measure(reader, vocab, added, &size));
    reader->tokenizer = tokenizer_new(size, bytes);
    reader->tokenizer->prefix_space = reader->prefix_space;
    reader->tokenizer->whole_first =
        kind_of(reader, member(reader, model, "ignore_merges")) == JSON_TRUE;
    uint8_t *added_ids = memory_zeroed(size, 1);
    enum status status = add_specials(reader, added, added_ids);
    if (status == STATUS_OK) status = add_vocab(reader, vocab, added_ids);
    free(added_ids);
    TRY(status);
    TRY(add_merges(reader, member(reader, model, "merges")));
    return tokenizer_complete(reader->tokenizer, reader->pattern, reader->path);
}

enum status tokenizer_parse_json(struct tokenizer **tokenizer, char *text, size_t bytes,
                                 const char *path) {
    struct reader reader = {.path = path};
    char why[256];
    enum status status = json_read_parse(&reader.tree, text, bytes, NODES_MAX, why, sizeof(why));
    if (status != STATUS_OK) {
        log_error("%s: %s", path, why);
        return status;
    }
    make_alphabet(reader.byte_of);
    status = build(&reader, bytes);
    json_read_free(&reader.tree);
    if (status == STATUS_OK) {
        *tokenizer = reader.tokenizer;
    } else {
        tokenizer_close(reader.tokenizer);
    }
    return status;
}

/* A pattern's name behind the last comma of path -> name [PATH_MAX_OUR] without it. */
static const char *take_pattern(const char *path, char *name) {
    snprintf(name, PATH_MAX_OUR, "%s", path);
    char *comma = strrchr(name, ',');
    const char *pattern = comma != NULL ? split_known(comma + 1) : NULL;
    if (pattern != NULL) *comma = '\0';
    return pattern;
}

enum status tokenizer_open(struct tokenizer **tokenizer, const char *path, const char *pattern) {
    char name[PATH_MAX_OUR], *text = NULL;
    size_t bytes = 0;
    struct tokenizer *opened = NULL;
    const char *named = take_pattern(path, name);
    if (pattern == NULL || pattern[0] == '\0') pattern = named;
    if (pattern != NULL && split_known(pattern) == NULL) {
        log_error("'%s' is no known split pattern; allowed are " SPLIT_NAMES, pattern);
        return STATUS_INVALID;
    }
    TRY(files_read(name, TOKENIZER_FILE_MAX, &text, &bytes));
    uint64_t digest = checksum_xxh3(text, bytes);
    bool json = text[strspn(text, " \t\r\n")] == '{';
    enum status status = json ? tokenizer_parse_json(&opened, text, bytes, name)
                              : tokenizer_parse_tiktoken(&opened, text, bytes, pattern, name);
    free(text);
    TRY(status);
    if (pattern != NULL && strcmp(pattern, tokenizer_pattern(opened)) != 0) {
        log_error("%s: splits by %s, not by %s", name, tokenizer_pattern(opened), pattern);
        tokenizer_close(opened);
        return STATUS_INVALID;
    }
    opened->digest = digest;
    *tokenizer = opened;
    return STATUS_OK;
}
