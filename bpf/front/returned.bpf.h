/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Returned: what becomes of a segment that finds no socket but the listening one, by the cookie that it returns.
 *
 *   the end of a handshake    says nothing yet, and is dropped: the request tells more
 *   first bytes               are gathered for the rules (gather.bpf.h), those of a connection that passes through excepted
 *   no cookie of ours         is a stray (stray.bpf.h)
 *
 * Problem: until the first bytes have come a connection is nothing but its cookie, and each check of one costs.
 * How: the checks stand in the order of their cost. What this CPU has just answered itself is known without any of them
 * (expected.bpf.h). Where connections are not held, the kernel makes them (unheld.bpf.h).
 */
#pragma once

#include "expected.bpf.h"
#include "forward.bpf.h"
#include "guard.bpf.h"
#include "local.bpf.h"
#include "missing.bpf.h"
#include "penalised.bpf.h"
#include "police.bpf.h"
#include "proven.bpf.h"
#include "stray.bpf.h"
#include "unheld.bpf.h"
#include "follows.bpf.h"

/* A segment without a socket. A verdict, STREAM_ENDS, STREAM_UNHELD, or HANDSHAKE_ENDS. */
static __noinline int segment_look(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				   struct stream *stream)
{
	struct packet *p = &front->packet;
	struct handshake *with = &stream->with;
	bool expected;

	if (is_forward(front))
		return forward_segment(skb, front);
	if (front->guard->flags & FIEF_GUARD_MONITOR)
		return unheld_rule(skb, front, stream);
	if (!(front->guard->flags & FIEF_GUARD_ADMIT))
		return front->guard->flags & FIEF_GUARD_POLICE ? unheld_rule(skb, front, stream) : TCX_NEXT;
	expected = !p->odd && !(front->guard->flags & FIEF_GUARD_KERNEL) && begin_expected(front);
	if (!expected && !is_local(skb, listening, p))
		return TCX_NEXT;
	if (is_below_admission(front) && (is_bare(p) || !hold_find(p, stream)))
		return unheld_rule(skb, front, stream);
	if (p->odd || options_read(skb, p, with))
		return count_drop(front, FIEF_SHAPE);
	if (expected) {
		if (source_penalised(front))
			return penalised_rule(skb, front);
		if (!connection_take(front))
			return TCX_DROP;
		cookie_read(p, p->ack - 1, with);
		stream_open(p, stream);
		return bytes_gather(skb, p, stream);
	}
	if (front->guard->queue && queue_repeats(p))
		return QUEUE_REPEATS;
	stream->times = 0;
	if (!with->timestamps && is_guess(front, stream))
		return count_drop(front, FIEF_ACK_LIMIT);
	if (!handshake_proven(front, listening, with))
		return stray_rule(skb, front, listening, stream);
	if (is_bare(p)) {
		source_prove(front);
		return TCX_DROP; /* the handshake's end: the request tells more */
	}
	if (cookie_spent(p, p->seq)) {
		bad_count(p, front->now, stream->times);
		return count_drop(front, FIEF_ACK_BAD);
	}
	if (source_penalised(front))
		return penalised_rule(skb, front);
	source_prove(front);
	if (!hold_find(p, stream)) {
		if (!connection_take(front))
			return TCX_DROP; /* it comes again */
		stream_open(p, stream);
	} else if (cookie_spent(p, stream->first + 1)) {
		return count_drop(front, FIEF_ACK_BAD);
	} else if (!stream->length && !with->missing) {
		stream_open(p, stream); /* nothing is missing any more: another size was forged (kernel_cookie.bpf.h) */
	}
	if (with->missing && !stream->length)
		return missing_look(skb, front, stream);
	return bytes_gather(skb, p, stream);
}
