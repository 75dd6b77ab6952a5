/* A stranger's config.json. A shape that is accepted must be one that the model can be planned for:
 * model_shape_check takes it, heads divide, nothing is below 1.
 */
#include "base/assert.h"
#include "worker/hf_config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct model_shape shape = {0};
    char why[256];
    char *text = malloc(bytes > 0 ? bytes : 1);
    if (text == NULL) return 0;
    memcpy(text, data, bytes);
    enum status status = hf_config_parse("fuzz", text, bytes, &shape);
    ASSERT(status == STATUS_OK || status == STATUS_CORRUPT || status == STATUS_UNSUPPORTED);
    if (status == STATUS_OK) {
        ASSERT(model_shape_check(&shape, why, sizeof why) == STATUS_OK);
        ASSERT(shape.channels % shape.heads == 0 && shape.heads % shape.kv_heads == 0);
        ASSERT(shape.vocab >= 1 && shape.positions >= 1 && shape.layers >= 1);
    }
    free(text);
    return 0;
}
