/* Any bytes as a token file: data_parse must refuse them or leave a file that can be checked and
 * read whole. The first byte chooses the file's name and the sequence length, the rest is the
 * content. Built as the other fuzzers are (LLVMFuzzerTestOneInput).
 */
#include "base/assert.h"
#include "base/log.h"
#include "worker/data.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCE_MAX 16
#define ROWS         3

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

static void read_all(const struct data *data, int64_t T) {
    struct data_stream stream;
    if (data_stream_open(&stream, data, 0, data->count, T, 1) != STATUS_OK) return;
    int32_t tokens[ROWS * SEQUENCE_MAX], targets[ROWS * SEQUENCE_MAX];
    uint64_t rounds = stream.windows < 64 ? stream.windows : 64;
    for (uint64_t number = 0; number < rounds; number++) {
        data_stream_read(&stream, number, ROWS, tokens, targets);
        for (int64_t i = 0; i < ROWS * T; i++)
            ASSERT(tokens[i] >= 0 && targets[i] >= 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    log_set_level(LOG_ERROR);
    if (bytes < 1) return 0;
    /* A copy of just the right size, aligned, so that a sanitizer sees each byte read beyond. */
    uint8_t *content = malloc(bytes > 1 ? bytes - 1 : 1);
    if (content == NULL) return 0;
    memcpy(content, input + 1, bytes - 1);
    struct data data;
    const char *name = input[0] & 1 ? "fuzz.bin" : "fuzz.txt";
    if (data_parse(&data, content, bytes - 1, name) == STATUS_OK &&
        data_check_vocab(&data, INT32_MAX) == STATUS_OK)
        read_all(&data, 1 + input[0] % SEQUENCE_MAX);
    free(content);
    return 0;
}
