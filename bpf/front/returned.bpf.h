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

/*
 * Whether the handshake is one that we answered, before a policy came that holds nothing: only its cookie makes it a connection. The
 * rest of a request that is held goes on too.
 */
static __noinline bool is_begun_before(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				       struct stream *stream)
{
	bool by_kernel = front->guard->flags & FIEF_GUARD_KERNEL;
	struct packet *p = &front->packet;
	struct handshake *with = &stream->with;

	if (p->odd || options_read(skb, p, with))
		return false;
	stream->times = 0;
	if (!with->timestamps && is_guess(front, stream))
		return false;
	if (!by_kernel && cookie_check(front, p->seq - 1, p->ack - 1, with))
		return !cookie_spent(p, p->seq);
	if (!by_kernel && !with->timestamps)
		bad_count(p, front->now, stream->times);
	if (is_bare(p) || !hold_find(p, stream) || cookie_spent(p, stream->first + 1))
		return false;
	if (by_kernel)
		kernel_cookie_read(p, listening, with);
	else
		cookie_read(p, stream->cookie, with);
	return true;
}

/* Goes on with it. A verdict, or STREAM_ENDS. */
static __always_inline int begun_look(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	struct packet *p = &front->packet;

	if (is_bare(p))
		return TCX_DROP; /* the request tells more */
	if (!hold_find(p, stream))
		stream_open(p, stream);
	return bytes_gather(skb, p, stream);
}

/* A segment without a socket. A verdict, STREAM_ENDS, STREAM_UNHELD, HANDSHAKE_ENDS, or HANDSHAKE_BEGINS. */
static __noinline int segment_look(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				   struct stream *stream)
{
	struct packet *p = &front->packet;
	struct handshake *with = &stream->with;
	struct fief_source *source;
	bool expected;

	if (is_forward(front))
		return forward_segment(skb, front);
	if ((front->guard->flags & (FIEF_GUARD_ADMIT | FIEF_GUARD_MONITOR)) != FIEF_GUARD_ADMIT) {
		if (is_begun_before(skb, front, listening, stream))
			return begun_look(skb, front, stream);
		return front->guard->flags & (FIEF_GUARD_POLICE | FIEF_GUARD_MONITOR) ? unheld_rule(skb, front, stream)
										      : TCX_NEXT;
	}
	expected = !p->odd && !(front->guard->flags & FIEF_GUARD_KERNEL) && begin_expected(front);
	if (!expected && !front->live && !is_local(skb, listening, p))
		return TCX_NEXT;
	if (is_below_admission(front) && (is_bare(p) || !hold_find(p, stream)))
		return unheld_rule(skb, front, stream);
	if (p->odd || options_read(skb, p, with))
		return count_drop(front, FIEF_SHAPE);
	if (expected) {
		source = source_policed(front);
		if (is_penalised(front, source))
			return penalised_rule(skb, front);
		if (!connection_take(front, source))
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
	source_prove(front); /* first: it may inherit a penalty of its network */
	source = source_policed(front);
	if (is_penalised(front, source))
		return penalised_rule(skb, front);
	if (!hold_find(p, stream)) {
		if (!connection_take(front, source))
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
