/* Config files from a user: any bytes are parsed or refused. What was parsed, printed as
 * --print-config does, must parse again to the same bytes of the config.
 */
#include "base/assert.h"
#include "base/log.h"
#include "base/options.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct config {
    char text[OPTION_TEXT_MAX];
    int64_t whole;
    double real;
    bool flag;
};

static const struct option table[] = {
    {"text", OPTION_TEXT, "a", 0, 0, "", "a text", true, 1, offsetof(struct config, text), NULL},
    {"whole", OPTION_INT, "1", 0, 0, "", "a count", true, 1, offsetof(struct config, whole), NULL},
    {"real", OPTION_REAL, "1", 0, 0, "", "a rate", true, 1, offsetof(struct config, real), NULL},
    {"flag", OPTION_FLAG, "no", 0, 0, "", "a switch", true, 1, offsetof(struct config, flag), NULL},
    {"other", OPTION_INT, "1", 1, 9, "", "elsewhere", true, 2, offsetof(struct config, whole),
     NULL},
};
static const size_t table_count = sizeof table / sizeof table[0];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct config first, second;
    struct options options;
    log_set_level(LOG_ERROR);
    options_init(&options, table, table_count, &first);
    if (options_parse_config(&options, 1, "fuzz", (const char *)data, bytes) != STATUS_OK) return 0;
    char *printed = NULL;
    size_t printed_bytes = 0;
    FILE *out = open_memstream(&printed, &printed_bytes);
    ASSERT(out != NULL);
    options_print_config(&options, 1, out);
    ASSERT_OP(fclose(out), ==, 0);
    options_init(&options, table, table_count, &second);
    enum status status = options_parse_config(&options, 1, "printed", printed, printed_bytes);
    ASSERT_OP(status, ==, STATUS_OK);
    free(printed);
    ASSERT(strcmp(first.text, second.text) == 0);
    ASSERT_OP(first.whole, ==, second.whole);
    ASSERT(memcmp(&first.real, &second.real, sizeof first.real) == 0);
    ASSERT_OP(first.flag, ==, second.flag);
    return 0;
}
