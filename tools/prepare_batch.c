#include "tools/prepare_batch.h"

#include "base/memory.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES ((size_t)16 << 20) /* of text */

enum status prepare_batch_open(struct prepare_batch *batch, const struct tokenizer *tokenizer,
                               int64_t threads) {
    *batch =
        (struct prepare_batch){.tokenizer = tokenizer, .threads = threads, .eot = TOKENIZER_NONE};
    batch->encoders = memory_zeroed((size_t)threads, sizeof(*batch->encoders));
    for (int64_t i = 0; tokenizer != NULL && i < threads; i++)
        TRY(tokenizer_encoder_open(&batch->encoders[i], tokenizer));
    return STATUS_OK;
}

static void drop_ids(struct prepare_batch *batch) {
    for (size_t i = 0; i < batch->piece_count; i++) {
        free(batch->pieces[i].ids);
        batch->pieces[i].ids = NULL;
    }
}

void prepare_batch_close(struct prepare_batch *batch) {
    drop_ids(batch);
    for (int64_t i = 0; batch->encoders != NULL && i < batch->threads; i++)
        tokenizer_encoder_close(batch->encoders[i]);
    free(batch->encoders);
    *batch = (struct prepare_batch){0};
}

static enum status encode(struct prepare_piece *piece, struct tokenizer_encoder *encoder) {
    const uint32_t *ids = NULL;
    size_t count = piece->bytes;
    if (encoder != NULL)
        TRY(tokenizer_encode(encoder, piece->text, piece->bytes, piece->starts, &ids, &count));
    piece->ids = memory_zeroed(count + 1, sizeof(*piece->ids));
    piece->count = count;
    for (size_t i = 0; i < count; i++)
        piece->ids[i] = encoder != NULL ? ids[i] : piece->text[i];
    return STATUS_OK;
}

static enum status write_piece(struct prepare_batch *batch, const struct prepare_piece *piece) {
    struct token_shards *shards = piece->held ? batch->held : batch->train;
    TRY(token_shards_write(shards, piece->ids, piece->count));
    if (piece->ends && batch->eot != TOKENIZER_NONE)
        TRY(token_shards_write(shards, &batch->eot, 1));
    batch->documents += piece->ends;
    batch->text_bytes += piece->bytes;
    return STATUS_OK;
}

enum status prepare_batch_flush(struct prepare_batch *batch) {
    enum status statuses[PREPARE_PIECES] = {STATUS_OK};
    enum status status = STATUS_OK;
    int count = (int)batch->piece_count;
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)batch->threads)
    for (int i = 0; i < count; i++)
        statuses[i] = encode(&batch->pieces[i], batch->encoders[omp_get_thread_num()]);
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        status = statuses[i];
        if (status == STATUS_OK) status = write_piece(batch, &batch->pieces[i]);
    }
    drop_ids(batch);
    batch->piece_count = 0;
    batch->bytes = 0;
    return status;
}

enum status prepare_batch_add(struct prepare_batch *batch, const struct prepare_piece *piece) {
    batch->pieces[batch->piece_count++] = *piece;
    batch->bytes += piece->bytes;
    bool full = batch->piece_count == PREPARE_PIECES || batch->bytes >= BATCH_BYTES;
    return full ? prepare_batch_flush(batch) : STATUS_OK;
}
