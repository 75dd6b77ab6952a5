#include "transport/tls_hello.h"

#include "base/checksum.h"

#include <string.h>

#define VERSION 1

static const uint8_t address_magic[4] = {'R', 'T', 'L', 'S'};
static const uint8_t hello_magic[8] = {'R', 'B', 'T', 'D', 'A', 'T', 'A', '1'};

static void put(uint8_t *bytes, uint64_t value, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t get(const uint8_t *bytes, size_t count) {
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

void tls_hello_put_u64(uint8_t *bytes, uint64_t value) {
    put(bytes, value, sizeof value);
}

uint64_t tls_hello_get_u64(const uint8_t *bytes) {
    return get(bytes, sizeof(uint64_t));
}

static bool is_zero(const uint8_t *bytes, size_t count) {
    uint8_t any = 0;
    for (size_t i = 0; i < count; i++) {
        any |= bytes[i];
    }
    return any == 0;
}

void tls_hello_put_address(const struct tls_address *address, uint8_t *bytes) {
    memcpy(bytes, address_magic, sizeof address_magic);
    bytes[4] = VERSION;
    bytes[5] = (uint8_t)address->wire;
    put(bytes + 6, address->port, 2);
    memcpy(bytes + 8, address->ip, sizeof address->ip);
    memcpy(bytes + 24, address->id, TLS_ID_BYTES);
    put(bytes + 40, checksum_crc32c(bytes, 40), 4);
}

enum status tls_hello_get_address(const uint8_t *bytes, size_t count, struct tls_address *address) {
    if (count != TLS_ADDRESS_BYTES || memcmp(bytes, address_magic, sizeof address_magic) != 0 ||
        bytes[4] != VERSION || bytes[5] > TLS_WIRE_ENCRYPT ||
        get(bytes + 40, 4) != checksum_crc32c(bytes, 40)) {
        return STATUS_CORRUPT;
    }
    address->wire = (enum tls_wire)bytes[5];
    address->port = (uint16_t)get(bytes + 6, 2);
    memcpy(address->ip, bytes + 8, sizeof address->ip);
    memcpy(address->id, bytes + 24, TLS_ID_BYTES);
    return STATUS_OK;
}

void tls_hello_put(const struct tls_hello *hello, uint8_t *bytes) {
    memset(bytes, 0, TLS_HELLO_BYTES);
    memcpy(bytes, hello_magic, sizeof hello_magic);
    memcpy(bytes + 8, hello->to, TLS_ID_BYTES);
    memcpy(bytes + 24, hello->from, TLS_ID_BYTES);
    put(bytes + 40, hello->link, 8);
    put(bytes + 48, hello->first, 8);
    bytes[56] = (uint8_t)hello->wire;
}

enum status tls_hello_get(const uint8_t *bytes, struct tls_hello *hello) {
    if (memcmp(bytes, hello_magic, sizeof hello_magic) != 0 || bytes[56] > TLS_WIRE_ENCRYPT ||
        !is_zero(bytes + 57, 7)) {
        return STATUS_CORRUPT;
    }
    memcpy(hello->to, bytes + 8, TLS_ID_BYTES);
    memcpy(hello->from, bytes + 24, TLS_ID_BYTES);
    hello->link = get(bytes + 40, 8);
    hello->first = get(bytes + 48, 8);
    hello->wire = (enum tls_wire)bytes[56];
    return STATUS_OK;
}

void tls_hello_put_welcome(const struct tls_welcome *welcome, uint8_t *bytes) {
    memset(bytes, 0, TLS_WELCOME_BYTES);
    memcpy(bytes, hello_magic, sizeof hello_magic);
    bytes[8] = (uint8_t)welcome->answer;
    put(bytes + 16, welcome->next, 8);
}

enum status tls_hello_get_welcome(const uint8_t *bytes, struct tls_welcome *welcome) {
    if (memcmp(bytes, hello_magic, sizeof hello_magic) != 0 || bytes[8] < TLS_ANSWER_COME ||
        bytes[8] > TLS_ANSWER_FULL || !is_zero(bytes + 9, 7)) {
        return STATUS_CORRUPT;
    }
    welcome->answer = (enum tls_answer)bytes[8];
    welcome->next = get(bytes + 16, 8);
    return STATUS_OK;
}
