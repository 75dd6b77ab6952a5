/* checksum.h - CRC32C for headers, XXH3-64 for payloads and digests. */
#ifndef RUBATO_BASE_CHECKSUM_H
#define RUBATO_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli, RFC 3720 appendix B.4); "123456789" -> 0xe3069283. SSE4.2 where the chip
 * has it, a table elsewhere, same value. Any thread. */
uint32_t checksum_crc32c(const void *data, size_t bytes);

/* The table alone, for chips without SSE4.2 and for the test that both agree. Any thread. */
uint32_t checksum_crc32c_portable(const void *data, size_t bytes);

/* XXH3 64-bit with seed 0. Any thread. */
uint64_t checksum_xxh3(const void *data, size_t bytes);

#endif
