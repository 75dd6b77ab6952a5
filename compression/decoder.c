#include "compression/decoder.h"

#include "base/assert.h"
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

enum status decoder_open(struct decoder *decoder, uint8_t codec, const uint8_t *wire, size_t bytes,
                         size_t count, void *scratch) {
    *decoder = (struct decoder){0};
    if (count == 0) return bytes == 0 ? STATUS_OK : STATUS_CORRUPT;
    if (codec == CODEC_ZSTD && scratch == NULL) return STATUS_CORRUPT;
    if (codec == CODEC_ZSTD)
        TRY(lossless_unpack(wire, bytes, decoder_payload_max(count), scratch, &codec, &wire,
                            &bytes));
    decoder->scheme = scheme_by_id(codec);
    decoder->view = (struct scheme_view){
        .loops = codec_loops_best(), .wire = wire, .bytes = bytes, .count = count};
    if (decoder->scheme == NULL || !check(decoder->scheme, &decoder->view)) return STATUS_CORRUPT;
    decoder->view.trusted = true;
    decoder->used = decoder->view.head;
    return STATUS_OK;
}

size_t decoder_tile(const struct decoder *decoder) {
    return decoder->scheme != NULL ? decoder->scheme->tile : 0;
}

/* Where the tiles begin is found once more, now that their bytes are trusted. */
void decoder_next(struct decoder *decoder, float *out, size_t n, bool add) {
    const struct scheme *scheme = decoder->scheme;
    const struct scheme_view *view = &decoder->view;
    const size_t end = decoder->at + n;
    ASSERT_OP(end, <=, view->count);
    ASSERT(end == view->count || (scheme->tile > 0 && n % scheme->tile == 0));
    for (size_t count; decoder->at < end; decoder->at += count, out += count) {
        count = tile_size(scheme, decoder->at, view->count);
        const uint8_t *tile = view->wire + decoder->used;
        scheme_decode_tile(scheme, view, decoder->at, count, tile, out, add);
        decoder->used +=
            scheme->measure(view, decoder->at, count, tile, view->bytes - decoder->used);
    }
}

static enum status decode(uint8_t codec, const uint8_t *wire, size_t bytes, float *out,
                          size_t count, void *scratch, bool add) {
    struct decoder decoder;
    TRY(decoder_open(&decoder, codec, wire, bytes, count, scratch));
    decoder_next(&decoder, out, count, add);
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
