/* exchange_parts.h - the parts that an exchange is made of, for each other: exchange.h tells how
 * they work together. All are called by the exchange's owner thread.
 *
 * exchange_send.c: what is handed to the channel, and when again. Nothing that a shard may have had
 * before harms it, so whatever may be lost is repeated: what is not answered for too long, and,
 * after the shard's connection broke and was made again, all that it has not answered.
 */
#ifndef RUBATO_WORKER_EXCHANGE_PARTS_H
#define RUBATO_WORKER_EXCHANGE_PARTS_H

#include "worker/exchange.h"

/* The block's open request, which is not unsent yet, is to be handed to the channel. */
void exchange_make_unsent(struct exchange *exchange, struct exchange_block *block);

/* All shards that own blocks of the committed report are to be told. */
void exchange_make_commits_due(struct exchange *exchange);

/* A CHANNEL_SENT. */
void exchange_sent(struct exchange *exchange, const struct channel_event *event, int64_t now_ns);

/* Hands over what is due, as far as the channel takes it. */
void exchange_send(struct exchange *exchange, int64_t now_ns);

#endif
