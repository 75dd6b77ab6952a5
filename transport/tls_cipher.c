#include "transport/tls_cipher.h"

#include "base/assert.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <string.h>

#define KEY_BYTES ((size_t)32)

enum status tls_cipher_init(struct tls_cipher *cipher, enum tls_wire wire, const uint8_t *secret,
                            bool sealing) {
    *cipher = (struct tls_cipher){.wire = wire};
    if (wire == TLS_WIRE_PLAIN) return STATUS_OK;
    cipher->context = EVP_CIPHER_CTX_new();
    if (!cipher->context || EVP_CipherInit_ex(cipher->context, EVP_aes_256_gcm(), NULL, secret,
                                              NULL, sealing ? 1 : 0) != 1) {
        tls_cipher_free(cipher);
        ERR_clear_error();
        return STATUS_MEMORY;
    }
    memcpy(cipher->nonce, secret + KEY_BYTES, sizeof cipher->nonce);
    return STATUS_OK;
}

void tls_cipher_free(struct tls_cipher *cipher) {
    EVP_CIPHER_CTX_free(cipher->context);
    *cipher = (struct tls_cipher){.wire = cipher->wire};
}

size_t tls_cipher_tag_bytes(enum tls_wire wire) {
    return wire == TLS_WIRE_PLAIN ? 0 : TLS_CIPHER_TAG_BYTES;
}

/* Sets the next record's nonce. */
static void begin(struct tls_cipher *cipher) {
    uint8_t nonce[TLS_CIPHER_NONCE_BYTES];
    memcpy(nonce, cipher->nonce, sizeof nonce);
    for (size_t i = 0; i < sizeof cipher->records; i++) {
        nonce[sizeof nonce - 1 - i] ^= (uint8_t)(cipher->records >> (8 * i));
    }
    cipher->records++;
    ASSERT_OP(EVP_CipherInit_ex(cipher->context, NULL, NULL, NULL, nonce, -1), ==, 1);
}

void tls_cipher_seal(struct tls_cipher *cipher, const uint8_t *plain, size_t bytes,
                     uint8_t *sealed) {
    int count = 0;
    ASSERT_OP(bytes, <, INT_MAX);
    if (cipher->wire != TLS_WIRE_ENCRYPT) memcpy(sealed, plain, bytes);
    if (cipher->wire == TLS_WIRE_PLAIN) return;
    begin(cipher);
    uint8_t *out = cipher->wire == TLS_WIRE_ENCRYPT ? sealed : NULL;
    ASSERT_OP(EVP_CipherUpdate(cipher->context, out, &count, plain, (int)bytes), ==, 1);
    ASSERT_OP(EVP_CipherFinal_ex(cipher->context, sealed + bytes, &count), ==, 1);
    ASSERT_OP(EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_AEAD_GET_TAG, (int)TLS_CIPHER_TAG_BYTES,
                                  sealed + bytes),
              ==, 1);
}

enum status tls_cipher_open(struct tls_cipher *cipher, uint8_t *sealed, size_t bytes,
                            const uint8_t *tag) {
    int count = 0;
    uint8_t expected[TLS_CIPHER_TAG_BYTES], rest[TLS_CIPHER_TAG_BYTES];
    ASSERT_OP(bytes, <, INT_MAX);
    if (cipher->wire == TLS_WIRE_PLAIN) return STATUS_OK;
    begin(cipher);
    memcpy(expected, tag, sizeof expected); /* OpenSSL wants it writable */
    uint8_t *out = cipher->wire == TLS_WIRE_ENCRYPT ? sealed : NULL;
    if (EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_AEAD_SET_TAG, (int)TLS_CIPHER_TAG_BYTES,
                            expected) != 1 ||
        EVP_CipherUpdate(cipher->context, out, &count, sealed, (int)bytes) != 1 ||
        EVP_CipherFinal_ex(cipher->context, rest, &count) != 1) {
        ERR_clear_error();
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}
