/* Proves that what a UCX channel maps once (ucx_memory.h) is found again by any address within and
 * by no other, as UCX itself says of the handles; that memory taken there is zeroed and aligned;
 * and that there is an end to it.
 */
#include "tests/test.h"
#include "transport/channel_ucx.h"
#include "transport/ucx_memory.h"
#include "transport/ucx_setup.h"

enum { BYTES = 3 * 4096 + 100 };

static void check_piece(const struct ucx_memory *memory, const uint8_t *base) {
    ucp_mem_h handle = ucx_memory_handle(memory, base);
    ucp_mem_attr_t knows = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    CHECK(handle != NULL);
    CHECK_INT(ucp_mem_query(handle, &knows), UCS_OK);
    CHECK((const uint8_t *)knows.address <= base);
    CHECK((const uint8_t *)knows.address + knows.length >= base + BYTES);
    CHECK(ucx_memory_handle(memory, base + BYTES - 1) == handle);
    CHECK(ucx_memory_handle(memory, base - 1) != handle);
    CHECK(ucx_memory_handle(memory, base + BYTES) != handle);
}

static void test_pieces(void) {
    static _Alignas(MEMORY_ALIGN) uint8_t own[BYTES];
    struct ucx_memory memory = {0};
    uint8_t *pieces[UCX_MEMORY_PIECES_MAX] = {own};
    ucp_context_h context = NULL;
    CHECK_INT(ucx_setup_context("lo", "tcp", &context), STATUS_OK);
    CHECK_INT(ucx_memory_map(&memory, context, own, BYTES), STATUS_OK);
    for (int i = 1; i < UCX_MEMORY_PIECES_MAX; i++) {
        CHECK_INT(ucx_memory_take(&memory, context, BYTES, &pieces[i]), STATUS_OK);
        CHECK_INT((uintptr_t)pieces[i] % MEMORY_ALIGN, 0);
        for (int at = 0; at < BYTES; at++)
            CHECK_INT(pieces[i][at], 0);
    }
    uint8_t *more = NULL;
    CHECK_INT(ucx_memory_take(&memory, context, BYTES, &more), STATUS_UNSUPPORTED);
    CHECK_INT(memory.bytes, UCX_MEMORY_PIECES_MAX * BYTES);
    for (int i = 0; i < UCX_MEMORY_PIECES_MAX; i++)
        check_piece(&memory, pieces[i]);
    CHECK(ucx_memory_handle(&memory, NULL) == NULL);
    CHECK(ucx_memory_handle(&memory, &memory) == NULL);
    ucx_memory_free(&memory, context);
    CHECK(ucx_memory_handle(&memory, own) == NULL);
    ucp_cleanup(context);
}

int main(void) {
    channel_ucx_setup();
    TEST_RUN(test_pieces);
    return 0;
}
