/* Proves that control messages survive the way to bytes and back, and that nothing a peer sends
 * does harm. Every kind of body is filled through protobuf-c's own descriptors, so that a message
 * added to control.proto is in this test by itself; the oracle of a round trip is the text of all
 * fields. Damage: every truncation of every kind, sizes over the limits, unknown bodies, and
 * 200,000 seeded mutations, into a scratch of exactly the size that is allowed (the sanitizer
 * build sees any byte beyond it).
 */
#include "base/random.h"
#include "proto/message.h"
#include "tests/test.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

/* Memory for the messages that a case makes; freed at its end. */
struct pool {
    void *pieces[4096];
    size_t count;
};

static void *pool_take(struct pool *pool, size_t bytes) {
    CHECK(pool->count < sizeof pool->pieces / sizeof pool->pieces[0]);
    void *piece = calloc(1, bytes > 0 ? bytes : 1);
    CHECK(piece != NULL);
    pool->pieces[pool->count++] = piece;
    return piece;
}

static void pool_free(struct pool *pool) {
    for (size_t i = 0; i < pool->count; i++)
        free(pool->pieces[i]);
    pool->count = 0;
}

static ProtobufCMessage *make(struct pool *pool, const ProtobufCMessageDescriptor *descriptor,
                              uint32_t salt);

/* One value of a field's type at `place`, different for each salt and never the default. */
static void make_value(struct pool *pool, const ProtobufCFieldDescriptor *field, uint32_t salt,
                       uint8_t *place) {
    char *text = NULL;
    ProtobufCBinaryData bytes = {0};
    ProtobufCMessage *message = NULL;
    uint64_t wide = UINT64_C(0xfedcba9876543210) + salt;
    uint32_t narrow = salt + 1;
    protobuf_c_boolean yes = 1;
    float single = 0.5f + (float)salt;
    double real = -0.25 - (double)salt;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        text = pool_take(pool, 32);
        snprintf(text, 32, "text %" PRIu32, salt);
        memcpy(place, &text, sizeof text);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        bytes.len = salt % 5;
        bytes.data = pool_take(pool, bytes.len);
        memset(bytes.data, (int)(salt & 0x7f), bytes.len);
        memcpy(place, &bytes, sizeof bytes);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        message = make(pool, field->descriptor, salt + 1000);
        memcpy(place, &message, sizeof(void *));
        break;
    case PROTOBUF_C_TYPE_UINT64:
        memcpy(place, &wide, sizeof wide);
        break;
    case PROTOBUF_C_TYPE_UINT32:
        memcpy(place, &narrow, sizeof narrow);
        break;
    case PROTOBUF_C_TYPE_ENUM: /* one of its own values, the last */
        narrow = (uint32_t)((const ProtobufCEnumDescriptor *)field->descriptor)
                     ->values[((const ProtobufCEnumDescriptor *)field->descriptor)->n_values - 1]
                     .value;
        memcpy(place, &narrow, sizeof narrow);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        memcpy(place, &yes, sizeof yes);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        memcpy(place, &single, sizeof single);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(place, &real, sizeof real);
        break;
    default:
        CHECK(!"a field type that this test does not know");
    }
}

static size_t element_bytes(const ProtobufCFieldDescriptor *field) {
    switch (field->type) {
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_FLOAT:
        return 4;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    default:
        return 8; /* u64, double, and pointers to text or messages */
    }
}

static ProtobufCMessage *make(struct pool *pool, const ProtobufCMessageDescriptor *descriptor,
                              uint32_t salt) {
    uint8_t *message = pool_take(pool, descriptor->sizeof_message);
    protobuf_c_message_init(descriptor, message);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        uint32_t own = salt + 10 * (i + 1);
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            make_value(pool, field, own, message + field->offset);
            continue;
        }
        size_t count = 3;
        uint8_t *elements = pool_take(pool, count * element_bytes(field));
        for (size_t e = 0; e < count; e++)
            make_value(pool, field, own + (uint32_t)e, elements + e * element_bytes(field));
        memcpy(message + field->quantifier_offset, &count, sizeof count);
        memcpy(message + field->offset, &elements, sizeof elements);
    }
    return (ProtobufCMessage *)(void *)message;
}

/* The Message with body `id`; NULL when there is none of that number. */
static Rubato__Message *make_body(struct pool *pool, unsigned id) {
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(&rubato__message__descriptor, id);
    if (field == NULL) return NULL;
    Rubato__Message *message = pool_take(pool, sizeof *message);
    rubato__message__init(message);
    ProtobufCMessage *body = make(pool, field->descriptor, 100 * id);
    memcpy((uint8_t *)message + field->offset, &body, sizeof(void *));
    message->body_case = (Rubato__Message__BodyCase)id;
    return message;
}

static void compare(const ProtobufCMessage *a, const ProtobufCMessage *b);

static void compare_values(const ProtobufCFieldDescriptor *field, const uint8_t *a,
                           const uint8_t *b) {
    const char *text_a = NULL, *text_b = NULL;
    const ProtobufCMessage *message_a = NULL, *message_b = NULL;
    ProtobufCBinaryData bytes_a, bytes_b;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        memcpy(&text_a, a, sizeof text_a);
        memcpy(&text_b, b, sizeof text_b);
        CHECK_TEXT(text_a, text_b);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        memcpy(&bytes_a, a, sizeof bytes_a);
        memcpy(&bytes_b, b, sizeof bytes_b);
        CHECK_INT(bytes_a.len, bytes_b.len);
        CHECK(bytes_a.len == 0 || memcmp(bytes_a.data, bytes_b.data, bytes_a.len) == 0);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        memcpy(&message_a, a, sizeof(void *));
        memcpy(&message_b, b, sizeof(void *));
        compare(message_a, message_b);
        break;
    default:
        CHECK(memcmp(a, b, element_bytes(field)) == 0);
    }
}

static void compare(const ProtobufCMessage *a, const ProtobufCMessage *b) {
    const ProtobufCMessageDescriptor *descriptor = a->descriptor;
    CHECK(descriptor == b->descriptor);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        const uint8_t *at_a = (const uint8_t *)a + field->offset;
        const uint8_t *at_b = (const uint8_t *)b + field->offset;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            compare_values(field, at_a, at_b);
            continue;
        }
        size_t count_a = 0, count_b = 0;
        memcpy(&count_a, (const uint8_t *)a + field->quantifier_offset, sizeof count_a);
        memcpy(&count_b, (const uint8_t *)b + field->quantifier_offset, sizeof count_b);
        CHECK_INT(count_a, count_b);
        memcpy(&at_a, at_a, sizeof at_a);
        memcpy(&at_b, at_b, sizeof at_b);
        for (size_t e = 0; e < count_a; e++)
            compare_values(field, at_a + e * element_bytes(field), at_b + e * element_bytes(field));
    }
}

#define IDS_MAX 64u

static void every_kind_round_trips(void) {
    struct message_scratch scratch;
    uint8_t *bytes = malloc(MESSAGE_MAX);
    unsigned kinds = 0;
    CHECK(bytes != NULL);
    CHECK_INT(message_scratch_init(&scratch, 65536), STATUS_OK);
    for (unsigned id = 1; id < IDS_MAX; id++) {
        struct pool pool = {.count = 0};
        size_t count = 0;
        const Rubato__Message *back = NULL;
        const Rubato__Message *message = make_body(&pool, id);
        if (message == NULL) continue;
        kinds++;
        CHECK_INT(message_pack(message, bytes, MESSAGE_MAX, &count), STATUS_OK);
        CHECK_INT(message_unpack(&scratch, bytes, count, &back), STATUS_OK);
        CHECK_INT(back->body_case, message->body_case);
        CHECK_TEXT(message_name(back), rubato__message__descriptor.fields[kinds - 1].name);
        const ProtobufCFieldDescriptor *field = &rubato__message__descriptor.fields[kinds - 1];
        compare_values(field, (const uint8_t *)message + field->offset,
                       (const uint8_t *)back + field->offset);
        pool_free(&pool);
    }
    CHECK_INT(kinds, rubato__message__descriptor.n_fields);
    CHECK(kinds >= 23);
    message_scratch_free(&scratch);
    free(bytes);
}

static void names(void) {
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    CHECK_TEXT(message_name(&message), "none");
    message.body_case = RUBATO__MESSAGE__BODY_VERDICT;
    CHECK_TEXT(message_name(&message), "verdict");
    message.body_case = RUBATO__MESSAGE__BODY_JOIN;
    CHECK_TEXT(message_name(&message), "join");
    message.body_case = RUBATO__MESSAGE__BODY_CHANGE;
    CHECK_TEXT(message_name(&message), "change");
    message.body_case = RUBATO__MESSAGE__BODY_DROP;
    CHECK_TEXT(message_name(&message), "drop");
}

/* Every prefix of a message is refused: the body's length comes first. The bytes lie in memory of
 * exactly their size. */
static void truncated_bytes(void) {
    struct message_scratch scratch;
    uint8_t *bytes = malloc(MESSAGE_MAX);
    CHECK(bytes != NULL);
    CHECK_INT(message_scratch_init(&scratch, 65536), STATUS_OK);
    for (unsigned id = 1; id < IDS_MAX; id++) {
        struct pool pool = {.count = 0};
        size_t count = 0;
        const Rubato__Message *message = make_body(&pool, id);
        if (message == NULL) continue;
        CHECK_INT(message_pack(message, bytes, MESSAGE_MAX, &count), STATUS_OK);
        for (size_t cut = 0; cut < count; cut++) {
            const Rubato__Message *back = NULL;
            uint8_t *exact = malloc(cut > 0 ? cut : 1);
            CHECK(exact != NULL);
            memcpy(exact, bytes, cut);
            CHECK_INT(message_unpack(&scratch, exact, cut, &back), STATUS_CORRUPT);
            CHECK(back == NULL);
            free(exact);
        }
        pool_free(&pool);
    }
    message_scratch_free(&scratch);
    free(bytes);
}

static void sizes_over_the_limits(void) {
    struct message_scratch scratch;
    struct pool pool = {.count = 0};
    const Rubato__Message *back = NULL;
    size_t count = 77;
    uint8_t *bytes = calloc(1, MESSAGE_MAX + 1);
    CHECK(bytes != NULL);
    Rubato__Message *message = make_body(&pool, RUBATO__MESSAGE__BODY_WAITING);

    /* Packing: capacity respected to the byte, nothing over MESSAGE_MAX whatever the capacity. */
    size_t exact = rubato__message__get_packed_size(message);
    bytes[exact] = 0xaa;
    bytes[exact - 1] = 0xaa;
    CHECK_INT(message_pack(message, bytes, exact - 1, &count), STATUS_INVALID);
    CHECK_INT(bytes[exact - 1], 0xaa);
    CHECK_INT(count, 77);
    CHECK_INT(message_pack(message, bytes, exact, &count), STATUS_OK);
    CHECK_INT(count, exact);
    CHECK_INT(bytes[exact], 0xaa);
    char *text = pool_take(&pool, MESSAGE_MAX + 2);
    memset(text, 'x', MESSAGE_MAX + 1);
    message->waiting->missing = text;
    CHECK_INT(message_pack(message, bytes, MESSAGE_MAX + 1, &count), STATUS_INVALID);
    Rubato__Message empty = RUBATO__MESSAGE__INIT;
    CHECK_INT(message_pack(&empty, bytes, MESSAGE_MAX, &count), STATUS_INVALID);

    /* Unpacking: a message of MESSAGE_MAX bytes is taken, one more is not. */
    text[MESSAGE_MAX - 8] = 0;
    CHECK_INT(message_pack(message, bytes, MESSAGE_MAX, &count), STATUS_OK);
    CHECK_INT(count, MESSAGE_MAX);
    CHECK_INT(message_scratch_init(&scratch, 8 * MESSAGE_MAX), STATUS_OK);
    CHECK_INT(message_unpack(&scratch, bytes, count, &back), STATUS_OK);
    CHECK(strlen(back->waiting->missing) == MESSAGE_MAX - 8);
    text[MESSAGE_MAX - 8] = 'x';
    text[MESSAGE_MAX - 7] = 0;
    CHECK_INT(rubato__message__pack(message, bytes), MESSAGE_MAX + 1);
    CHECK_INT(message_unpack(&scratch, bytes, MESSAGE_MAX + 1, &back), STATUS_CORRUPT);
    message_scratch_free(&scratch);

    /* A scratch that is too small refuses at every size up to the one that is enough, and can be
     * used again. */
    message->waiting->missing = pool_take(&pool, 8);
    CHECK_INT(message_pack(message, bytes, MESSAGE_MAX, &count), STATUS_OK);
    bool enough = false;
    for (size_t capacity = 1; capacity < 512; capacity++) {
        CHECK_INT(message_scratch_init(&scratch, capacity), STATUS_OK);
        enum status status = message_unpack(&scratch, bytes, count, &back);
        CHECK_INT(message_unpack(&scratch, bytes, count, &back), status);
        CHECK(status == STATUS_CORRUPT ? !enough : status == STATUS_OK);
        CHECK(scratch.used <= capacity);
        if (status == STATUS_OK) enough = true;
        message_scratch_free(&scratch);
    }
    CHECK(enough);
    pool_free(&pool);
    free(bytes);
}

/* 2-byte fields, half a million of them: what a hostile message can make the library allocate. */
static void many_small_fields(void) {
    struct message_scratch scratch;
    const Rubato__Message *back = NULL;
    uint8_t *bytes = malloc(MESSAGE_MAX);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < MESSAGE_MAX; i += 2) {
        bytes[i] = (RUBATO__MESSAGE__BODY_GO << 3) | 2;
        bytes[i + 1] = 0;
    }
    CHECK_INT(message_scratch_init(&scratch, 8 * MESSAGE_MAX), STATUS_OK);
    CHECK_INT(message_unpack(&scratch, bytes, MESSAGE_MAX, &back), STATUS_CORRUPT);
    CHECK_INT(message_unpack(&scratch, bytes, 2, &back), STATUS_OK);
    CHECK_INT(back->body_case, RUBATO__MESSAGE__BODY_GO);
    message_scratch_free(&scratch);
    free(bytes);
}

static void no_body(void) {
    struct message_scratch scratch;
    const Rubato__Message *back = NULL;
    CHECK_INT(message_scratch_init(&scratch, 4096), STATUS_OK);
    CHECK_INT(message_unpack(&scratch, (const uint8_t *)"", 0, &back), STATUS_CORRUPT);
    /* Field 500, empty: a body of a later build. */
    const uint8_t later[] = {0xa2, 0x1f, 0x00};
    CHECK_INT(message_unpack(&scratch, later, sizeof later, &back), STATUS_CORRUPT);
    message_scratch_free(&scratch);
}

static void mutate(struct random_stream *stream, uint8_t *bytes, size_t *count) {
    uint64_t changes = 1 + random_below(stream, 4);
    for (uint64_t i = 0; i<changes && * count> 0; i++) {
        uint64_t at = random_below(stream, *count);
        switch (random_below(stream, 4)) {
        case 0:
            bytes[at] = (uint8_t)random_u32(stream);
            break;
        case 1:
            bytes[at] ^= (uint8_t)(1u << random_below(stream, 8));
            break;
        case 2:
            *count = at;
            break;
        default:
            memmove(bytes + at, bytes + at / 2, *count - at);
        }
    }
}

/* Whatever the bytes, the status is OK or CORRUPT, and what was understood can be packed. */
static void random_mutations(void) {
    enum { ROUNDS = 200000, SEED = 20240229 };
    struct random_stream stream;
    struct message_scratch scratch;
    struct pool pools[IDS_MAX] = {{.count = 0}};
    uint8_t *packed[IDS_MAX] = {NULL};
    size_t counts[IDS_MAX] = {0};
    unsigned kinds = 0;
    size_t understood = 0;
    uint8_t *again = malloc(MESSAGE_MAX);
    CHECK(again != NULL);
    for (unsigned id = 1; id < IDS_MAX; id++) {
        const Rubato__Message *message = make_body(&pools[kinds], id);
        if (message == NULL) continue;
        packed[kinds] = malloc(4096);
        CHECK(packed[kinds] != NULL);
        CHECK_INT(message_pack(message, packed[kinds], 4096, &counts[kinds]), STATUS_OK);
        kinds++;
    }
    CHECK_INT(message_scratch_init(&scratch, 65536), STATUS_OK);
    random_open(&stream, SEED, RANDOM_SIMULATOR, 0);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned kind = (unsigned)random_below(&stream, kinds);
        size_t count = counts[kind];
        uint8_t *bytes = malloc(count > 0 ? count : 1);
        const Rubato__Message *back = NULL;
        CHECK(bytes != NULL);
        memcpy(bytes, packed[kind], count);
        mutate(&stream, bytes, &count);
        enum status status = message_unpack(&scratch, bytes, count, &back);
        CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
        if (status == STATUS_OK) {
            size_t again_count = 0;
            understood++;
            CHECK(strcmp(message_name(back), "none") != 0);
            CHECK_INT(message_pack(back, again, MESSAGE_MAX, &again_count), STATUS_OK);
        }
        free(bytes);
    }
    CHECK(understood > ROUNDS / 100 && understood < ROUNDS);
    message_scratch_free(&scratch);
    for (unsigned kind = 0; kind < kinds; kind++) {
        pool_free(&pools[kind]);
        free(packed[kind]);
    }
    free(again);
}

int main(void) {
    TEST_RUN(every_kind_round_trips);
    TEST_RUN(names);
    TEST_RUN(truncated_bytes);
    TEST_RUN(sizes_over_the_limits);
    TEST_RUN(many_small_fields);
    TEST_RUN(no_body);
    TEST_RUN(random_mutations);
    return 0;
}
