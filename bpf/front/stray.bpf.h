/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stray: a segment without a socket and without a valid cookie.
 *
 * Such a segment is one of these:
 *
 *   the rest of a header that is held
 *   a segment right after a verdict
 *   part of a connection that the server has forgotten; the kernel answers it by a reset
 *   the end of a connection that was refused
 *   of a flow whose addresses are translated after the door
 *   a segment with an expired cookie, which draws a reset
 *
 * All others are dropped and counted (strict): passed on, one would draw a reset upon a client whose first segment was lost.
 *
 * Limits: a forgotten connection is known by its verdict, as long as `admitted` has the entry and for its first 16 MiB each
 * way; one that the kernel made by itself only where requests are ruled. Other clients find out by a timeout.
 */
#pragma once

#include "admitted.bpf.h"
#include "answer.bpf.h"
#include "conntrack.bpf.h"
#include "gather.bpf.h"
#include "guard.bpf.h"
#include "guesses.bpf.h"
#include "kernel_cookie.bpf.h"
#include "kernel_handshake.bpf.h"
#include "owed.bpf.h"
#include "penalised.bpf.h"
#include "ran_out.bpf.h"
#include "tags.bpf.h"
#include "unheld.bpf.h"

/*
 * Whether the connection that was admitted had its socket: the client has been answered by it. Where servers close first,
 * this is what a full table of TIME_WAIT leaves: a client whose end is not acknowledged sends it again and again.
 */
static __always_inline bool was_answered(const struct fief_admitted *entry, const struct packet *p)
{
	return p->seq - entry->begin < FORGOTTEN_BYTES && p->ack - entry->answer_at - 1 < FORGOTTEN_BYTES;
}

#define STREAM_OVER -6 /* as a verdict: the segment is of a connection that was here */

/* A verdict, STREAM_OVER, or STREAM_ENDS: nothing was admitted. The next request cannot be ruled before the socket is there. */
static __noinline int once_admitted(struct front_context *front)
{
	const struct packet *p = &front->packet;
	struct fief_admitted *entry;
	struct fief_flow_key key;

	flow_key(p, &key);
	entry = admitted_find(&key);
	if (!entry)
		return STREAM_ENDS;
	if (was_answered(entry, p))
		return STREAM_OVER;
	/*
	 * The verdict made a socket, or will in a moment: in their order on one CPU. Later than that it has failed, and a segment that
	 * is passed on would draw a reset. Untracked: only a class waits for the socket (isolated.bpf.h).
	 */
	if (entry->spent || !entry->tracked || front->now - entry->time_ns >= BATCH_NS)
		return STREAM_ENDS;
	if (entry->tracked & FIEF_LABEL_TAIL ||
	    (entry->tracked & FIEF_LABEL_TRACKED && is_behind(p->seq + p->payload_length, entry->next)))
		return TCX_DROP; /* it comes again */
	/* on another CPU it could be before its socket, and draw a reset */
	return entry->cpu == bpf_get_smp_processor_id() ? TCX_NEXT : TCX_DROP;
}

/* A segment that comes after an answer is acknowledged to its end. Negative: this flow got no answer. */
static __always_inline int answer_ends(struct __sk_buff *skb, struct front_context *front, const struct handshake *with)
{
	struct packet *p = &front->packet;

	if (!is_answered(p, front->now))
		return -1;
	return is_bare(p) ? TCX_DROP : acknowledge(skb, p, with, packet_end(p), HOLD_WINDOW);
}

/*
 * The rest of a connection that was here draws a reset. Its bytes do not go with it: the kernel may make another connection of the same
 * ports in this batch, and would keep them, unruled, until those before them have come.
 */
static __always_inline int over_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	return is_bare(&front->packet) || !requests_ruled(front) ? TCX_NEXT : packet_strip(skb, front, stream);
}

/*
 * Counts the segment. Its client learns that there is no connection, as from a server that has closed it, and can make another
 * one.
 */
static __noinline int no_connection(struct __sk_buff *skb, struct front_context *front, enum fief_reason reason)
{
	struct packet *p = &front->packet;
	struct segment *s;

	count_drop(front, reason);
	s = segment_begin(p->ack, packet_end(p), 0, TCP_ACK | TCP_RST);
	return s ? segment_answer(skb, p, s) : TCX_DROP;
}

/* The stream of a connection begins with the segment. */
static __always_inline void stream_open(const struct packet *p, struct stream *stream)
{
	stream->first = p->seq - 1;
	stream->first -= stream->with.missing;
	stream->cookie = p->ack - 1;
	stream->length = 0;
	stream->held = HALF_NONE;
	stream->known = 0;
	stream->doubted = 0;
}

/*
 * The kernel answered its SYN, with a cookie of its own: before we did, or at a listener of multipath TCP. Without bytes it makes the
 * connection, and the request is ruled as it passes; bytes would reach the server with the socket, and are ruled here. They may be kept and
 * acknowledged, which a socket must not miss that the bare end of the handshake makes: one in the same batch comes first (early.bpf.h),
 * and one that comes later is dropped.
 */
static __noinline int kernel_answered(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				      struct stream *stream)
{
	struct packet *p = &front->packet;

	if (!skb->cb[ROUNDS_AT] && (early_send_of(skb, ROUNDS_NEEDED) || queue_mark()))
		return TCX_DROP;
	kernel_cookie_read(p, listening, &stream->with);
	stream->with.missing = 0;
	stream_open(p, stream);
	return bytes_gather(skb, p, stream);
}

/* Whether bytes of a connection that is not here have been acknowledged; after half_look(). */
__noinline int half_lost(const struct half_name *name __arg_nonnull)
{
	return half_tagged(name);
}

/* A verdict, STREAM_ENDS, STREAM_UNHELD, HANDSHAKE_ENDS, or HANDSHAKE_BEGINS. */
static __noinline int stray_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				 struct stream *stream)
{
	struct packet *p = &front->packet;
	int verdict;

	if (!is_bare(p) && hold_find(p, stream)) {
		if (cookie_spent(p, stream->first + 1))
			return count_drop(front, FIEF_ACK_BAD);
		if (is_penalised(front, source_policed(front)))
			return penalised_rule(skb, front);
		if (front->guard->flags & FIEF_GUARD_KERNEL)
			kernel_cookie_read(p, listening, &stream->with);
		else
			cookie_read(p, stream->cookie, &stream->with);
		return bytes_gather(skb, p, stream);
	}
	/* a client can choose its numbers so that another connection looks like the rest of the one before */
	verdict = once_admitted(front);
	if (verdict != STREAM_ENDS && !kernel_cookie_check(p)) {
		if (verdict == TCX_NEXT && !is_bare(p))
			mark_add(skb, MARK_BEGINS);
		return verdict == STREAM_OVER ? over_rule(skb, front, stream) : verdict;
	}
	verdict = answer_ends(skb, front, &stream->with);
	if (verdict >= 0)
		return verdict;
	if (!is_bare(p) && half_lost(&stream->half))
		return no_connection(skb, front, unread_reason(FIEF_UNREAD_NO_ROOM, true));
	if (tracked_status(skb, p) & ADDRESSES_TRANSLATED && !kernel_cookie_check(p))
		return TCX_NEXT;
	if (!admit_in_force(front))
		return unheld_rule(skb, front, stream);
	if (kernel_cookie_check(p)) {
		if (is_penalised(front, source_policed(front)))
			return penalised_rule(skb, front);
		stream->first = p->seq - 1;
		if (cookie_spent(p, p->seq))
			return count_drop(front, FIEF_ACK_BAD);
		if (!is_bare(p))
			return HANDSHAKE_BEGINS;
		return hold_find(p, stream) ? TCX_DROP : HANDSHAKE_ENDS;
	}
	bad_count(p, front->now, stream->times);
	if (!bad_too_many(p, front->now, stream->times) && ran_out(front, &stream->with))
		return no_connection(skb, front, FIEF_ACK_BAD);
	return count_drop(front, FIEF_ACK_BAD);
}
