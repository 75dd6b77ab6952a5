/* json_read.h - reads one JSON text (RFC 8259) into a flat tree; strict, for files from strangers.
 *
 * The tree is an array of nodes in the text's order: a node's descendants follow it, and `next` is
 * the index behind the last of them. An object's members are pairs of a key (a text) and a value.
 * Texts are decoded where they lie and end with a 0 byte, so the caller's text is changed and must
 * outlive the tree:
 *   for (uint32_t key = object + 1; key < nodes[object].next; key = nodes[key + 1].next)
 *       ... json_read_text(tree, key), nodes[key + 1] ...
 * Refused: a key that an object has twice, text that is not UTF-8, a lone surrogate, \u0000 (so
 * that texts are C strings), numbers such as 01, .5, NaN, a byte order mark, nesting of more than
 * JSON_DEPTH_MAX, and more nodes than the caller allows: memory is bounded by that number.
 * Set-up only: it allocates. Any thread.
 */
#ifndef RUBATO_BASE_JSON_READ_H
#define RUBATO_BASE_JSON_READ_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH_MAX 32
#define JSON_BYTES_MAX ((size_t)1 << 31)
#define JSON_NONE      UINT32_MAX /* no such node */

enum json_kind {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_TEXT,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json_node {
    enum json_kind kind;
    uint32_t begin, end; /* where its text was, quotes and brackets included */
    uint32_t length;     /* a text's bytes, decoded; an array's values; an object's members */
    uint32_t next;
};

struct json_tree {
    char *text;              /* the caller's */
    struct json_node *nodes; /* [count]; nodes[0] is the outermost value */
    uint32_t count;
    uint32_t capacity;
};

/* text [bytes] -> tree; behind the outermost value there may be white space only. CORRUPT: not such
 * a text, with the reason and its place in why [why_bytes]; MEMORY likewise. Nothing is kept then.
 * node_limit >= 1. */
enum status json_read_parse(struct json_tree *tree, char *text, size_t bytes, uint32_t node_limit,
                            char *why, size_t why_bytes) WARN_UNUSED;

/* Harmless on a zeroed struct. */
void json_read_free(struct json_tree *tree);

/* The value of a member, or JSON_NONE; also when `object` is none. */
uint32_t json_read_member(const struct json_tree *tree, uint32_t object, const char *key);

/* The text of a node that is one (ASSERT); lives as long as the tree's text. */
const char *json_read_text(const struct json_tree *tree, uint32_t node);

/* False, and no change, when the node is no whole number written without point or exponent, or not
 * one of 64 bits. */
bool json_read_int(const struct json_tree *tree, uint32_t node, int64_t *value);

/* False, and no change, when the node is no finite number. */
bool json_read_real(const struct json_tree *tree, uint32_t node, double *value);

#endif
