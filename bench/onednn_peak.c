#include "bench/onednn_peak.h"

#include "base/assert.h"
#include "base/clock.h"
#include "bench/median.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPERANDS = 3, REPEATS_MAX = 99 };

static void check(dnnl_status_t status, const char *what) {
    if (status != dnnl_success) {
        fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)status);
        exit(1);
    }
}

static dnnl_memory_desc_t any_layout(int64_t rows, int64_t cols, dnnl_data_type_t type) {
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {rows, cols};
    check(dnnl_memory_desc_init_by_tag(&desc, 2, dims, type, dnnl_format_tag_any), "layout");
    return desc;
}

/* In the layout that the primitive chose. */
static dnnl_memory_t take_memory(dnnl_primitive_desc_t primitive, dnnl_query_t which,
                                 dnnl_engine_t engine) {
    dnnl_memory_t memory = NULL;
    void *bytes = NULL;
    const dnnl_memory_desc_t *desc = dnnl_primitive_desc_query_md(primitive, which, 0);
    check(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_ALLOCATE), "memory");
    check(dnnl_memory_get_data_handle(memory, &bytes), "memory");
    /* 0x3c makes 0.0115 in both types: an ordinary number. */
    memset(bytes, 0x3c, dnnl_memory_desc_get_size(desc));
    return memory;
}

double onednn_peak_seconds(int64_t rows, int64_t inner, int64_t cols, bool bf16, int repeats) {
    dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t a = any_layout(rows, inner, type);
    dnnl_memory_desc_t b = any_layout(inner, cols, type);
    dnnl_memory_desc_t y = any_layout(rows, cols, dnnl_f32);
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t primitive_desc = NULL;
    dnnl_primitive_t primitive = NULL;
    double seconds[REPEATS_MAX];
    ASSERT(repeats >= 1 && repeats <= REPEATS_MAX);
    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "stream");
    check(dnnl_matmul_desc_init(&desc, &a, &b, NULL, &y), "matmul");
    check(dnnl_primitive_desc_create(&primitive_desc, &desc, NULL, engine, NULL), "matmul");
    check(dnnl_primitive_create(&primitive, primitive_desc), "matmul");
    dnnl_exec_arg_t arguments[OPERANDS] = {
        {DNNL_ARG_SRC, take_memory(primitive_desc, dnnl_query_src_md, engine)},
        {DNNL_ARG_WEIGHTS, take_memory(primitive_desc, dnnl_query_weights_md, engine)},
        {DNNL_ARG_DST, take_memory(primitive_desc, dnnl_query_dst_md, engine)}};
    for (int i = -1; i < repeats; i++) {
        int64_t start_ns = clock_now_ns();
        check(dnnl_primitive_execute(primitive, stream, OPERANDS, arguments), "execution");
        check(dnnl_stream_wait(stream), "execution");
        seconds[i < 0 ? 0 : i] = (double)(clock_now_ns() - start_ns) / (double)CLOCK_S;
    }
    for (int i = 0; i < OPERANDS; i++) {
        (void)dnnl_memory_destroy(arguments[i].memory);
    }
    (void)dnnl_primitive_destroy(primitive);
    (void)dnnl_primitive_desc_destroy(primitive_desc);
    (void)dnnl_stream_destroy(stream);
    (void)dnnl_engine_destroy(engine);
    return median(seconds, (size_t)repeats);
}

void onednn_peak_name(char *name, size_t bytes) {
    const dnnl_version_t *version = dnnl_version();
    (void)snprintf(name, bytes, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}
