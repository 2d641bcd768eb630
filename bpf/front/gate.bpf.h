/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Gate: what becomes of a packet to a guarded port, in the order that is cheapest for what comes most often.
 *
 *   an established socket   passes; only its requests are looked at (later.bpf.h)
 *   SYN                     is policed, then answered by us or left to the kernel
 *   cookie, no bytes        is dropped: the connection is not there yet, and costs nothing
 *   cookie and bytes        are ruled; refused ones are answered here
 *   anything else           is dropped and counted (strict): passed on, it would draw a reset upon a client whose first
 *                           segment was lost
 *
 * Limits: connections that the kernel made (admission below its level, TIME_WAIT, MPTCP) are ruled as they pass.
 */
#pragma once

#include "admit.bpf.h"
#include "guard.bpf.h"
#include "later.bpf.h"

static __always_inline bool is_mptcp(struct tcp_sock *listening)
{
	return bpf_core_field_exists(listening->is_mptcp) && BPF_CORE_READ_BITFIELD(listening, is_mptcp);
}

static __noinline int syn_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening)
{
	bool drop = false;

	if (!is_local(skb, listening, &front->packet))
		return TCX_NEXT;
	if (front->packet.odd)
		return count_drop(front, FIEF_SHAPE);
	police_syn(front, &drop);
	if (drop)
		return TCX_DROP;
	if (!admit_in_force(front) || front->guard->flags & FIEF_GUARD_KERNEL || is_mptcp(listening))
		return TCX_NEXT;
	syn_count(front, false);
	return handshake_answer(skb, front, listening);
}

static __always_inline int syn_arrives(struct __sk_buff *skb, struct front_context *front)
{
	struct tcp_sock *listening = NULL;
	int verdict = TCX_NEXT;
	struct bpf_sock *sk;

	if (!guard_find(front))
		return TCX_NEXT;
	sk = socket_find(skb, &front->packet);
	if (!sk)
		return TCX_NEXT; /* nobody listens: the kernel says so */
	if (sk->state == BPF_TCP_LISTEN)
		listening = bpf_skc_to_tcp_sock(sk);
	if (listening) {
		load_look(front, sk);
		verdict = syn_rule(skb, front, listening);
	}
	bpf_sk_release(sk);
	return verdict;
}

/*
 * Bad segments that are looked at in a second: without timestamps a cookie is 23 bits, so one in two hours is forged. Who
 * returned a cookie before is looked at in any case.
 */
#define BAD_INTERVAL_NS	 1000000ull
#define BAD_TOLERANCE_NS 1000000000ull

__u64 bad_arrival_ns; /* a bucket as struct fief_bucket's */

static __always_inline bool bad_too_many(__u64 now)
{
	__u64 arrival = *(volatile __u64 *)&bad_arrival_ns;

	return arrival > now && arrival - now > BAD_TOLERANCE_NS;
}

static __always_inline void bad_count(__u64 now)
{
	__u64 arrival = *(volatile __u64 *)&bad_arrival_ns;

	if (arrival < now)
		__sync_val_compare_and_swap(&bad_arrival_ns, arrival, now);
	__sync_fetch_and_add(&bad_arrival_ns, BAD_INTERVAL_NS);
}

/*
 * The verdict made a socket, or will in a moment: packets of one batch pass here before the first of them has reached
 * TCP. Later than that it has failed, and a segment that is passed on would draw a reset.
 */
#define ADMITTED_FRESH_NS 2000000ull

static __noinline bool just_admitted(struct front_context *front)
{
	struct fief_admitted *entry;
	struct fief_flow_key key;

	flow_key(&front->packet, &key);
	entry = bpf_map_lookup_elem(&admitted, &key);
	return entry && front->now - entry->time_ns < ADMITTED_FRESH_NS;
}

#define STREAM_ENDS -1 /* no verdict yet: the stream is to be ruled as far as it has come */

/* Bytes, or a FIN, whose place in a stream is known. */
static __always_inline int bytes_gather(struct __sk_buff *skb, const struct packet *p, struct stream *stream)
{
	switch (hold_gather(skb, p, stream)) {
	case HOLD_KNOWN:
		return hold_acknowledge(skb, p, stream);
	case HOLD_SPOILT:
		return TCX_DROP;
	default:
		return STREAM_ENDS;
	}
}

/* A segment that proves nothing by itself. */
static __always_inline int stray_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	struct packet *p = &front->packet;
	int verdict;

	if ((p->payload_length || p->flags & TCP_FIN) && hold_find(p, stream)) {
		cookie_read(p, stream->cookie, &stream->with);
		return bytes_gather(skb, p, stream);
	}
	if (just_admitted(front))
		return TCX_NEXT;
	verdict = answer_ends(skb, front, &stream->with);
	if (verdict >= 0)
		return verdict;
	if (!admit_in_force(front))
		return TCX_NEXT;
	bad_count(front->now);
	return count_drop(front, FIEF_ACK_BAD);
}

/* A segment without a socket, at a listener whose connections are held. A verdict, or STREAM_ENDS. */
static __noinline int segment_look(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				   struct stream *stream)
{
	struct packet *p = &front->packet;
	struct handshake *with = &stream->with;

	if (!is_local(skb, listening, p))
		return TCX_NEXT;
	if (p->odd || options_read(skb, p, with))
		return count_drop(front, FIEF_SHAPE);
	if (!with->timestamps && bad_too_many(front->now) && !source_proven(front))
		return count_drop(front, FIEF_ACK_LIMIT);
	if (!cookie_check(front, p->seq - 1, p->ack - 1, with))
		return stray_rule(skb, front, stream);
	source_prove(front);
	if (!p->payload_length && !(p->flags & TCP_FIN))
		return TCX_DROP; /* the handshake's end: the request tells more */
	if (!hold_find(p, stream)) {
		stream->first = p->seq - 1;
		stream->cookie = p->ack - 1;
		stream->length = 0;
	}
	return bytes_gather(skb, p, stream);
}

static __always_inline int segment_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening)
{
	struct stream *stream;
	int verdict;

	if ((front->guard->flags & (FIEF_GUARD_ADMIT | FIEF_GUARD_MONITOR)) != FIEF_GUARD_ADMIT)
		return TCX_NEXT;
	stream = stream_get();
	if (!stream)
		return TCX_DROP;
	verdict = segment_look(skb, front, listening, stream);
	if (verdict == STREAM_ENDS)
		verdict = stream_rule(skb, front, listening, stream);
	return verdict;
}

static __always_inline bool has_stream(__u32 state)
{
	return state == BPF_TCP_ESTABLISHED || state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2;
}

static __always_inline int segment_arrives(struct __sk_buff *skb, struct front_context *front)
{
	struct tcp_sock *listening = NULL;
	int verdict = TCX_NEXT;
	struct bpf_sock *sk;
	__u32 state;

	sk = socket_find(skb, &front->packet);
	if (!sk)
		return TCX_NEXT;
	state = sk->state;
	barrier_var(state);
	if (state == BPF_TCP_LISTEN && guard_find(front))
		listening = bpf_skc_to_tcp_sock(sk);
	else if (has_stream(state) && (front->packet.payload_length || front->packet.odd))
		verdict = data_arrives(skb, front, sk);
	if (listening)
		verdict = segment_rule(skb, front, listening);
	bpf_sk_release(sk);
	return verdict;
}

static __always_inline int gate(struct __sk_buff *skb, struct front_context *front)
{
	__u8 kind = front->packet.flags & (TCP_SYN | TCP_RST | TCP_ACK);

	if (kind == TCP_SYN)
		return syn_arrives(skb, front);
	if (kind == TCP_ACK)
		return segment_arrives(skb, front);
	return TCX_NEXT; /* resets, and what the kernel drops or refuses by itself */
}
