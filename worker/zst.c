#include "worker/zst.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>
#include <zstd_errors.h>

/* The header of a frame (RFC 8878, section 3.1.1.1): magic 4 bytes, descriptor 1, window 1. */
#define WINDOW_OFFSET  5
#define SINGLE_SEGMENT 0x20
#define SCRATCH_BYTES  ((size_t)1 << 17)

struct file {
    const uint8_t *bytes;
    size_t count;
    const char *path;
    uint64_t limit;
};

/* What the frames declare. */
struct sizes {
    uint64_t content;
    bool known;
};

static enum status refuse(const struct file *file, size_t offset, const char *reason) {
    log_error("%s: byte %zu: %s", file->path, offset, reason);
    return STATUS_CORRUPT;
}

static enum status too_large(const struct file *file) {
    log_error("%s: decompresses to more than %" PRIu64 " MB, which this machine's memory cannot "
              "hold; decompress it with zstd -d and give that file",
              file->path, file->limit / 1000000);
    return STATUS_MEMORY;
}

/* A frame of `bytes` bytes that starts at `frame`: does it want too large a window? Where the
 * window is the content itself (single segment), no window is held beside it. */
static bool window_too_large(const uint8_t *frame, size_t bytes) {
    if (bytes <= WINDOW_OFFSET || frame[0] != 0x28 || (frame[4] & SINGLE_SEGMENT) != 0)
        return false;
    uint64_t base = UINT64_C(1) << (10 + (frame[WINDOW_OFFSET] >> 3));
    uint64_t window = base + base / 8 * (frame[WINDOW_OFFSET] & 7);
    return window > UINT64_C(1) << ZST_WINDOW_LOG;
}

static enum status walk(const struct file *file, struct sizes *sizes) {
    size_t at = 0;
    *sizes = (struct sizes){.known = true};
    while (at < file->count) {
        const uint8_t *frame = file->bytes + at;
        size_t left = file->count - at;
        size_t bytes = ZSTD_findFrameCompressedSize(frame, left);
        if (ZSTD_isError(bytes)) {
            bool cut = ZSTD_getErrorCode(bytes) == ZSTD_error_srcSize_wrong;
            return refuse(file, at,
                          cut       ? "the zstd frame that starts here is cut off"
                          : at == 0 ? "not a zstd file"
                                    : "not a zstd frame: damaged, or something behind the last");
        }
        if (window_too_large(frame, bytes))
            return refuse(file, at, "the frame wants a window of more than 2^27 bytes");
        unsigned long long content = ZSTD_getFrameContentSize(frame, left);
        if (content == ZSTD_CONTENTSIZE_ERROR) return refuse(file, at, "a damaged frame header");
        if (content == ZSTD_CONTENTSIZE_UNKNOWN) {
            sizes->known = false;
        } else if (content > file->limit - sizes->content) {
            return too_large(file);
        } else {
            sizes->content += content;
        }
        at += bytes;
    }
    return STATUS_OK;
}

/* Decompresses all frames into content [capacity], or, where it is NULL, into nothing; *total is
 * what came out. */
static enum status stream(const struct file *file, ZSTD_DCtx *context, uint8_t *content,
                          uint64_t capacity, uint64_t *total) {
    uint8_t *scratch = content == NULL ? memory_zeroed(SCRATCH_BYTES, 1) : NULL;
    ZSTD_inBuffer in = {.src = file->bytes, .size = file->count};
    enum status status = STATUS_OK;
    size_t left = 1;
    *total = 0;
    while (status == STATUS_OK) {
        ZSTD_outBuffer out = {.dst = scratch, .size = SCRATCH_BYTES};
        if (content != NULL) {
            out.dst = content + *total;
            out.size = (size_t)(capacity - *total);
        }
        size_t in_before = in.pos;
        left = ZSTD_decompressStream(context, &out, &in);
        *total += out.pos;
        if (ZSTD_isError(left)) {
            status = refuse(file, in.pos, ZSTD_getErrorName(left));
        } else if (*total > file->limit) {
            status = too_large(file);
        } else if (left == 0 && in.pos == in.size) {
            break;
        } else if (out.pos == 0 && in.pos == in_before) {
            status = refuse(file, in.pos, "the content is not of the size that it declares");
        }
    }
    free(scratch);
    return status;
}

static enum status decode_to(const struct file *file, ZSTD_DCtx *context, uint64_t size,
                             uint8_t **content) {
    uint64_t total = 0;
    if (size == 0) {
        *content = NULL;
        return STATUS_OK;
    }
    uint8_t *map =
        mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        log_error("%s: no memory for its content of %" PRIu64 " bytes: %s", file->path, size,
                  strerror(errno));
        return STATUS_MEMORY;
    }
    enum status status = stream(file, context, map, size, &total);
    if (status == STATUS_OK && total != size)
        status = refuse(file, file->count, "the content is not of the size that it declares");
    if (status != STATUS_OK) {
        munmap(map, (size_t)size);
        return status;
    }
    *content = map;
    return STATUS_OK;
}

enum status zst_decode(const uint8_t *file_bytes, size_t bytes, const char *path, uint64_t limit,
                       uint8_t **content, uint64_t *content_bytes) {
    struct file file = {.bytes = file_bytes, .count = bytes, .path = path, .limit = limit};
    struct sizes sizes;
    uint8_t *decoded = NULL;
    TRY(walk(&file, &sizes));
    ZSTD_DCtx *context = ZSTD_createDCtx();
    if (context == NULL) {
        log_error("%s: no memory for a zstd decoder", path);
        return STATUS_MEMORY;
    }
    (void)ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, ZST_WINDOW_LOG);
    enum status status = STATUS_OK;
    if (!sizes.known) status = stream(&file, context, NULL, 0, &sizes.content);
    if (status == STATUS_OK) {
        (void)ZSTD_DCtx_reset(context, ZSTD_reset_session_only);
        status = decode_to(&file, context, sizes.content, &decoded);
    }
    ZSTD_freeDCtx(context);
    if (status == STATUS_OK) {
        *content = decoded;
        *content_bytes = sizes.content;
    }
    return status;
}

void zst_free(uint8_t *content, uint64_t content_bytes) {
    if (content != NULL) munmap(content, (size_t)content_bytes);
}

uint64_t zst_default_limit(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_C(1) << 32;
}
