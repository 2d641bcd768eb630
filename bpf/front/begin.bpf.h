/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Begin: the first bytes of a connection are ruled, with what follows them in the packet that makes it.
 *
 *   no end yet    the bytes are kept (hold.bpf.h), or come again where the kernel has the handshake
 *   refused       the client gets its answer (answer.bpf.h)
 *   may pass      the packet grows to all of them (grow.bpf.h), what is behind the first request is ruled (rest.bpf.h), and the
 *                 packet makes the connection (admit.bpf.h), or its request goes to the queue
 *
 * Problem: a server must spend nothing on a connection before the door knows its request.
 * How: the first data segment bears the cookie (seq = first + 1), and waits for the verdict of all that came.
 * Where the kernel has the handshake no request can wait in the queue before there is a socket. Only the handshake's end passes
 * then, and the request goes round (early.bpf.h) and finds the socket. If it may not, it passes while there is a place, and comes
 * again while there is none.
 */
#pragma once

#include "admit.bpf.h"
#include "answer.bpf.h"
#include "early.bpf.h"
#include "grow.bpf.h"
#include "hold.bpf.h"
#include "isolated.bpf.h"
#include "keep.bpf.h"
#include "queue.bpf.h"
#include "refuse.bpf.h"
#include "rest.bpf.h"
#include "rule.bpf.h"
#include "tail.bpf.h"

/* Whether a request without a socket is not for the server now: one that goes round, or would wait. */
static __always_inline bool queue_holds_up(struct __sk_buff *skb, const struct front_context *front)
{
	struct fief_queue *q = queue_of_packet(skb, front->guard->queue);

	return q && !q->monitor && (early_send(skb) || !queue_is_free(q, front->now));
}

/* Half a head makes the connection, and is ruled with what comes on it (next.bpf.h). */
static __always_inline int half_begin(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	struct fief_admitted *entry = &stream->admitted;

	if (!hold_keep(&front->packet, stream, 0, 0, stream->ruling.skipped))
		return requested_wait(front);
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->container = client_container(front);
	entry->rule = FIEF_NO_ID;
	entry->begin = front->packet.seq;
	entry->next = entry->begin;
	entry->answer_at = front->packet.ack;
	entry->tracked = FIEF_LABEL_TRACKED | FIEF_LABEL_HALF;
	entry->verdicts = 1;
	entry->time_ns = front->now;
	return admit_of(skb, front, NULL, stream, stream->flow);
}

/* Rules the stream, and carries it out on the packet that ends it. */
static __noinline int stream_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *found,
				  struct stream *stream)
{
	struct packet *p = &front->packet;
	struct ruling *ruling = &stream->ruling;
	__u32 length = stream->length, how = RULE_FIRST;
	enum rest rest;
	__s64 paid;
	__u64 kept;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (!found && !stream->deferred && queue_holds_up(skb, front))
		return packet_strip(skb, front, stream);
	isolated_look(front);
	/* before they are ruled: what comes twice is read once, and counted once */
	stream->flow = packet_flow(p);
	paid = begin_claim(front, stream->first + 1, stream->flow);
	if (paid == BEGIN_WAITS)
		return TCX_DROP;
	ruling->by.paid = paid;
	if (p->flags & TCP_FIN && p->seq + p->payload_length == stream->first + 1 + length)
		how |= RULE_ENDED;
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, how, ruling) ==
	    REQUEST_NEED_MORE) {
		if (!found && stream->deferred && stream->length == p->payload_length)
			return half_begin(skb, front, stream);
		if (found ? hold_keep(p, stream, 0, 0, ruling->skipped) : !stream->deferred) {
			begin_leave(front->now, stream->first + 1, stream->flow);
			return found ? kept_acknowledge(skb, p, stream) : packet_strip(skb, front, stream);
		}
		/* without a socket: there is more in the packet than can be kept, and all of it would pass */
		unread_rule(front, ruling, found ? FIEF_UNREAD_NO_ROOM : FIEF_UNREAD_TOO_LONG);
	}
	half_done(stream);
	if (ruling->refused) {
		begin_leave(front->now, stream->first + 1, stream->flow);
		half_refuse(p, stream);
		return turn_away(skb, front, found, stream);
	}
	kept = (__u64)stream->cookie << 32 | stream->held;
	barrier_var(kept); /* one word of the stack, which is short */
	if ((p->seq != stream->first + 1 || stream->known) && packet_grow(skb, p, stream))
		return TCX_DROP;
	admitted_begin(front, stream);
	if (!tail_keep(front, stream)) {
		begin_leave(front->now, stream->admitted.begin, stream->flow);
		return turn_away(skb, front, found, stream);
	}
	rest = has_rest(p, &stream->admitted) ? rest_rule(skb, front, stream) : REST_PASSES;
	if (rest == REST_REFUSED) {
		begin_leave(front->now, stream->admitted.begin, stream->flow);
		stream->held = kept;
		stream->cookie = kept >> 32;
		half_refuse(p, stream);
		return turn_away(skb, front, found, stream);
	}
	if (rest == REST_SPOILT)
		return TCX_DROP;
	if (front->guard->queue)
		return found ? QUEUE_FIRST : QUEUE_UNHELD;
	return admit_of(skb, front, found, stream, stream->flow);
}
