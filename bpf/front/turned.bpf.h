/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Turned: what a request is told that the queue turns away, at once or after it has waited, and what is left of it.
 *
 * Problem: its client may not get the answer, and says the same again: within moments, or as often as it likes.
 * How: a first request that came whole keeps the same bytes back as if it had passed (claim.bpf.h): doubled, it would find a place that is
 * free by then, and be carried out though its client reads the refusal. One that came in pieces gets the same answer again without a
 * reading (refused.bpf.h).
 * Limits: bytes that come once more when that time is over are a new request.
 */
#pragma once

#include "admitted.bpf.h"
#include "refused.bpf.h"

#define RETRY_LATER_S 1
#define TLS_FIRST     0x16 /* its first byte: a handshake */

/* What it is told whose request cannot wait. `over`: since its class has used up its limit, or its length. */
static __always_inline void queue_refusal(struct stream *stream, const struct front_context *front, bool tls, bool over)
{
	if (front->guard)
		asking_set(front, &stream->ruling);
	stream->ruling.tls = tls;
	stream->ruling.rule.refusal = over ? FIEF_REFUSE_429 : FIEF_REFUSE_503;
	stream->ruling.rule.retry_after_s = RETRY_LATER_S;
}

/* Whether it is TLS, or no HTTP at all: its client understands no answer of HTTP. */
static __always_inline bool is_foreign(struct __sk_buff *skb, const struct packet *p, const struct fief_admitted *entry)
{
	__u8 first = 0;

	bpf_skb_load_bytes(skb, p->payload, &first, 1);
	return first == TLS_FIRST || entry->tracked & FIEF_LABEL_TURNS;
}
