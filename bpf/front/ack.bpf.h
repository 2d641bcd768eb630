/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ack: what the door does with a segment that acknowledges something. The most frequent cases come first where that is cheap.
 *
 *   an established socket   the segment passes; only its requests are ruled (later.bpf.h)
 *   a socket in the making  another CPU makes it now: bytes are dropped, and come again
 *   a request socket        passes once the handshake's end is counted (ends.bpf.h); bytes that come with it are ruled
 *   the end of a handshake  that this CPU has just answered is dropped without a lookup (expected.bpf.h)
 *   cookie, no bytes        is dropped: the connection does not exist yet, and costs nothing
 *   cookie and bytes        are ruled; refused ones are answered here
 *   anything else           is dropped and counted (strict): passed on, it would draw a reset upon a client whose first
 *                           segment was lost
 *
 * Problem: with all its rules the door is more than the verifier follows in one program.
 * How: this is a program of its own, which the door's program tail-calls with the parsed packet.
 * Limits: during an upgrade, the door's program may be of one version and this one of the next.
 */
#pragma once

#include "expected.bpf.h"
#include "forward.bpf.h"
#include "later.bpf.h"
#include "passed.bpf.h"
#include "plain.bpf.h"
#include "stray.bpf.h"

/* An answer that has no way: the kernel may know one for its own SYN-ACK, and else the client cannot be told anything. */
static __noinline int answer_unrouted(struct __sk_buff *skb, struct front_context *front, int verdict)
{
	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_ANSWER_UNROUTED, false);
	if (verdict == SEGMENT_UNASKED)
		return TCX_DROP; /* the kernel would ask for its neighbour */
	return (front->packet.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN ? syn_pass(skb, front) : TCX_DROP;
}

/* Carries out the verdict upon the packet. */
static __always_inline int door_leave(struct __sk_buff *skb, struct front_context *front, int verdict)
{
	if (verdict == SEGMENT_UNROUTED || verdict == SEGMENT_UNASKED)
		verdict = front->listener ? answer_unrouted(skb, front, verdict) : TCX_DROP;
	if (verdict == TCX_NEXT && !front->connected)
		passed_note(&front->packet);
	return verdict;
}

/* Whether the segment is the first after a handshake, by whoever's cookie; what was agreed is added to `with`. */
static __always_inline bool handshake_proven(struct front_context *front, struct tcp_sock *listening,
					     struct handshake *with)
{
	const struct packet *p = &front->packet;

	if (!(front->guard->flags & FIEF_GUARD_KERNEL))
		return cookie_check(front, p->seq - 1, p->ack - 1, with);
	if (!kernel_cookie_check(p))
		return false;
	kernel_cookie_read(p, listening, with);
	with->missing = kernel_cookie_missing(p, listening, with->segment_size);
	return true;
}

/*
 * Bytes before the segment are missing, by the kernel's cookie. Where that is in doubt, a client that sends from here once
 * more begins here.
 */
static __always_inline int missing_look(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	const struct packet *p = &front->packet;

	if (half_lost(&stream->half))
		return no_connection(skb, front, unread_reason(FIEF_UNREAD_NO_ROOM, true));
	if (stream->doubted == p->seq && !size_remembered(p)) {
		stream->first = p->seq - 1;
		return bytes_gather(skb, p, stream);
	}
	stream->doubted = p->seq;
	return hold_keep(p, stream) ? hold_acknowledge(skb, p, stream) : TCX_DROP;
}

/* The kernel makes the connection of its own cookie, as where it keeps the handshake. */
static __always_inline bool is_below_admission(struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_KERNEL && !admit_in_force(front);
}

/*
 * Whether the segment is one guess too many at the cookie of a client without timestamps. What goes on behind kept bytes is
 * none: it is known by the whole cookie.
 */
static __noinline bool is_guess(struct front_context *front, struct stream *stream)
{
	struct packet *p = &front->packet;

	if (!bad_too_many(p, front->now, 0))
		return false;
	if (!is_bare(p) && hold_find(p, stream))
		return false;
	stream->times = resent(p, front->now, RESENT_SEGMENT);
	return !stream->times || bad_too_many(p, front->now, stream->times);
}

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
	stream->times = 0;
	if (!with->timestamps && is_guess(front, stream))
		return count_drop(front, FIEF_ACK_LIMIT);
	if (!handshake_proven(front, listening, with))
		return stray_rule(skb, front, listening, stream);
	if (is_bare(p)) {
		source_prove(front);
		return TCX_DROP; /* the handshake's end: the request tells more */
	}
	if (cookie_spent(p)) {
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
	}
	if (with->missing && !stream->length)
		return missing_look(skb, front, stream);
	return bytes_gather(skb, p, stream);
}

/*
 * It may be a SYN or a segment. A connection that passes through to others is policed by its SYN, and no honest sender parts
 * a SYN from its flags.
 */
static __always_inline int torn_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening)
{
	return is_forward(front) || is_local(skb, listening, &front->packet) ? shape_rule(front) : TCX_NEXT;
}

/* A segment of no socket here. */
static __always_inline int passing_rule(struct __sk_buff *skb, struct front_context *front)
{
	if (!segment_guard_find(front) || !is_forward(front))
		return TCX_NEXT;
	return front->packet.torn ? shape_rule(front) : forward_segment(skb, front);
}

/*
 * Another CPU makes the socket at this moment, from the segment before: nothing can be known of it yet, and what came to it
 * now would be taken unruled. The client sends it again. A guard that watches holds nothing up: it rules the bytes as if their
 * numbers were good, and spoils a count at worst.
 */
static __always_inline int begun_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	const struct packet *p = &front->packet;

	if (!segment_guard_find(front) || !front->guard->shapes)
		return TCX_NEXT;
	if (!(front->guard->flags & FIEF_GUARD_MONITOR))
		return TCX_DROP;
	return p->odd ? TCX_NEXT : requested_verdict(front, unheld_begin(skb, p, stream));
}

static __always_inline int segment_arrives(struct __sk_buff *skb, struct front_context *front)
{
	struct stream *stream = stream_get();
	struct tcp_sock *listening = NULL;
	int verdict = TCX_NEXT;
	struct bpf_sock *sk;
	__u32 state;

	if (!stream)
		return TCX_DROP;
	if (end_expected(&front->packet))
		return TCX_DROP;
	sk = socket_find(skb, &front->packet, NULL);
	if (!sk)
		return passing_rule(skb, front);
	state = sk->state;
	barrier_var(state);
	front->connected = state != BPF_TCP_LISTEN;
	if (state == BPF_TCP_LISTEN && segment_guard_find(front))
		listening = bpf_skc_to_tcp_sock(sk);
	else if (has_stream(state) && (!is_bare(&front->packet) || front->packet.odd))
		verdict = data_arrives(skb, front, sk);
	else if (has_stream(state) && sk->bound_dev_if)
		verdict_settle(front, sk);
	else if (state == BPF_TCP_SYN_RECV && (!is_bare(&front->packet) || front->packet.odd))
		verdict = begun_rule(skb, front, stream);
	else if (state == BPF_TCP_NEW_SYN_RECV)
		verdict = request_look(skb, front, sk, stream);
	if (listening && front->packet.torn)
		verdict = torn_rule(skb, front, listening);
	else if (listening)
		verdict = segment_look(skb, front, listening, stream);
	if (verdict == STREAM_UNHELD)
		listening = NULL;
	verdict = end_rule(front, verdict);
	if (verdict == STREAM_ENDS && stream->known)
		verdict = stream_join(skb, front, stream);
	if (verdict == STREAM_ENDS)
		verdict = stream_rule(skb, front, listening, stream);
	else if (has_stream(state) && front->packet.flags & TCP_FIN && verdict == TCX_NEXT)
		admitted_ended(&front->packet, sk);
	bpf_sk_release(sk);
	return verdict;
}

/* A segment that acknowledges something, or of which nothing but its ports is known. */
static __always_inline bool is_ack(const struct packet *p)
{
	return p->torn || (p->flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK;
}

/* What a CPU hands from one program to the next. */
struct handed {
	struct packet packet;
	__u32 slot;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct handed);
} handed SEC(".maps");

int ack_guards(struct __sk_buff *skb);

/* The pin keeps it: without one the kernel empties an array of programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, int(struct __sk_buff *));
} door_programs SEC(".maps") = {
    .values = {[0] = (void *)&ack_guards},
};

/* Leaves the packet to ack_guards; returns only where that is not there. */
static __always_inline int ack_hand(struct __sk_buff *skb, const struct front_context *front)
{
	__u32 zero = 0;
	struct handed *to = bpf_map_lookup_elem(&handed, &zero);

	if (!to)
		return TCX_NEXT;
	to->packet = front->packet;
	to->slot = front->slot;
	bpf_tail_call(skb, &door_programs, 0);
	count_error(FIEF_ERR_DOOR);
	return TCX_NEXT;
}

static __always_inline int ack_take(struct front_context *front)
{
	__u32 zero = 0;
	const struct handed *from = bpf_map_lookup_elem(&handed, &zero);

	if (!from)
		return -1;
	front->packet = from->packet;
	front->slot = from->slot;
	return 0;
}
