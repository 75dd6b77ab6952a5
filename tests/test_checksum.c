/* CRC32C and XXH3 against published values and an oracle.
 *
 * CRC: the test values of RFC 3720 B.4, then every length 0..300 at every alignment 0..7 of random
 * bytes against a bit-by-bit division, for the path with the chip's instruction and the other one.
 * XXH3: the empty input's published value, agreement with itself at any alignment, and that each
 * single flipped bit shows.
 */
#include "base/checksum.h"
#include "base/random.h"
#include "tests/test.h"

static uint32_t crc32c_oracle(const uint8_t *data, size_t bytes) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes * 8; i++) {
        uint32_t bit = (uint32_t)(data[i / 8] >> (i % 8)) & 1;
        uint32_t out = (crc ^ bit) & 1;
        crc = crc >> 1 ^ (out ? 0x82f63b78 : 0);
    }
    return ~crc;
}

static void check_crc(const void *data, size_t bytes, uint32_t expected) {
    CHECK_INT(crc32c_oracle(data, bytes), expected);
    CHECK_INT(checksum_crc32c(data, bytes), expected);
    CHECK_INT(checksum_crc32c_portable(data, bytes), expected);
}

static void test_crc_published(void) {
    uint8_t data[32];
    check_crc("123456789", 9, 0xe3069283);
    check_crc("", 0, 0);
    memset(data, 0, sizeof data);
    check_crc(data, sizeof data, 0x8a9136aa);
    memset(data, 0xff, sizeof data);
    check_crc(data, sizeof data, 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)i;
    check_crc(data, sizeof data, 0x46dd794e);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)(31 - i);
    check_crc(data, sizeof data, 0x113fdb5c);
}

static void fill(uint8_t *data, size_t bytes) {
    struct random_stream stream;
    random_open(&stream, 1, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)random_u32(&stream);
}

static void test_crc_lengths(void) {
    uint8_t data[320];
    fill(data, sizeof data);
    for (size_t start = 0; start < 8; start++) {
        for (size_t bytes = 0; bytes <= 300; bytes++)
            check_crc(data + start, bytes, crc32c_oracle(data + start, bytes));
    }
}

static void test_xxh3(void) {
    CHECK(checksum_xxh3("", 0) == UINT64_C(0x2d06800538d394c2));
    static uint8_t data[2048], copy[2048 + 8];
    fill(data, sizeof data);
    const size_t lengths[] = {1, 3, 8, 16, 17, 128, 129, 240, 241, 1024, 2048};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint64_t expected = checksum_xxh3(data, lengths[i]);
        for (size_t shift = 0; shift < 8; shift++) {
            memcpy(copy + shift, data, lengths[i]);
            CHECK(checksum_xxh3(copy + shift, lengths[i]) == expected);
        }
    }
    uint64_t expected = checksum_xxh3(data, 300);
    for (size_t bit = 0; bit < (size_t)300 * 8; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(checksum_xxh3(data, 300) != expected);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

int main(void) {
    TEST_RUN(test_crc_published);
    TEST_RUN(test_crc_lengths);
    TEST_RUN(test_xxh3);
    return 0;
}
