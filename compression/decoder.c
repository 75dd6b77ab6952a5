#include "compression/decoder.h"

#include "compression/lossless.h"
#include "compression/scheme.h"

/* f32 has 4 bytes a value; no other comes near but topk, whose places and values take 3 each and
 * what long gaps need. Heads, row masks and scales of a few values are in what is added. */
size_t decoder_payload_max(size_t count) {
    return 4 * count + 256;
}

uint8_t decoder_inner_codec(uint8_t codec, const uint8_t *wire) {
    return codec == CODEC_ZSTD ? wire[0] : codec;
}

size_t decoder_scratch_bytes(size_t most_values) {
    return lossless_unpack_scratch(decoder_payload_max(most_values));
}

static size_t tile_size(const struct scheme *scheme, size_t offset, size_t count) {
    size_t left = count - offset;
    return scheme->tile > 0 && scheme->tile < left ? scheme->tile : left;
}

static bool check(const struct scheme *scheme, struct scheme_view *view) {
    if (scheme->open != NULL && !scheme->open(view)) return false;
    size_t used = view->head;
    for (size_t offset = 0, n; offset < view->count; offset += n) {
        n = tile_size(scheme, offset, view->count);
        size_t left = view->bytes - used;
        size_t bytes = scheme->measure(view, offset, n, view->wire + used, left);
        if (bytes > left) return false;
        used += bytes;
    }
    return used == view->bytes;
}

/* Where the tiles begin is found once more, now that their bytes are trusted. */
static void decode_tiles(const struct scheme *scheme, const struct scheme_view *view, float *out,
                         bool add) {
    size_t used = view->head;
    for (size_t offset = 0, n; offset < view->count; offset += n) {
        n = tile_size(scheme, offset, view->count);
        const uint8_t *at = view->wire + used;
        scheme_decode_tile(scheme, view, offset, n, at, out + offset, add);
        used += scheme->measure(view, offset, n, at, view->bytes - used);
    }
}

static enum status decode(uint8_t codec, const uint8_t *wire, size_t bytes, float *out,
                          size_t count, void *scratch, bool add) {
    if (count == 0) return bytes == 0 ? STATUS_OK : STATUS_CORRUPT;
    if (codec == CODEC_ZSTD && scratch == NULL) return STATUS_CORRUPT;
    if (codec == CODEC_ZSTD)
        TRY(lossless_unpack(wire, bytes, decoder_payload_max(count), scratch, &codec, &wire,
                            &bytes));
    const struct scheme *scheme = scheme_by_id(codec);
    struct scheme_view view = {
        .loops = codec_loops_best(), .wire = wire, .bytes = bytes, .count = count};
    if (scheme == NULL || !check(scheme, &view)) return STATUS_CORRUPT;
    view.trusted = true;
    decode_tiles(scheme, &view, out, add);
    return STATUS_OK;
}

enum status decoder_add(uint8_t codec, const uint8_t *wire, size_t bytes, float *sum, size_t count,
                        void *scratch) {
    return decode(codec, wire, bytes, sum, count, scratch, true);
}

enum status decoder_set(uint8_t codec, const uint8_t *wire, size_t bytes, float *values,
                        size_t count, void *scratch) {
    return decode(codec, wire, bytes, values, count, scratch, false);
}
