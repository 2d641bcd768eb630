/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ack: what the door does with a segment that acknowledges something. The most frequent cases come first where that is cheap.
 *
 *   an established socket   the segment passes; only its requests are ruled (later.bpf.h)
 *   a socket in the making  another CPU makes it now: bytes are dropped, and come again
 *   a request socket        passes once the handshake's end is counted (ends.bpf.h); bytes that come with it are ruled
 *   cookie, no bytes        is dropped: the connection does not exist yet, and costs nothing
 *   cookie and bytes        are ruled; refused ones are answered here
 *   anything else           is dropped and counted (strict): passed on, it would draw a reset upon a client whose first
 *                           segment was lost
 *
 * The segments that find no socket but the listening one are told apart by their cookie (returned.bpf.h). Most that bear nothing do not come
 * here (bare.bpf.h).
 */
#pragma once

#include "admitted.bpf.h"
#include "arrive.bpf.h"
#include "ends.bpf.h"
#include "expected.bpf.h"
#include "forward.bpf.h"
#include "handed.bpf.h"
#include "hold.bpf.h"
#include "made.bpf.h"
#include "requested.bpf.h"
#include "begin.bpf.h"
#include "returned.bpf.h"

/* A segment of no socket here. */
static __always_inline int passing_rule(struct __sk_buff *skb, struct front_context *front)
{
	if (!segment_guard_find(front) || !is_forward(front))
		return TCX_NEXT;
	return front->packet.torn ? shape_rule(front) : forward_segment(skb, front);
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
	sk = socket_find(skb, &front->packet, NULL);
	if (!sk)
		return passing_rule(skb, front);
	state = sk->state;
	barrier_var(state);
	front->connected = state != BPF_TCP_LISTEN;
	made_mark(skb, state);
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
	verdict = end_rule(skb, front, verdict, stream->first + 1);
	if (verdict == HANDSHAKE_BEGINS && listening)
		verdict = kernel_answered(skb, front, listening, stream);
	if (verdict == STREAM_ENDS && stream->known)
		verdict = stream_join(skb, front, stream);
	if (verdict == STREAM_REFUSED)
		verdict = answer(skb, &front->packet, stream);
	if (verdict == STREAM_ENDS)
		verdict = stream_rule(skb, front, listening, stream);
	else if (has_stream(sk->state) && front->packet.flags & TCP_FIN &&
		 (verdict == TCX_NEXT || verdict == QUEUE_LATER || verdict == QUEUE_WHOLE))
		admitted_ended(&front->packet, sk);
	bpf_sk_release(sk);
	return verdict == END_NOTED ? TCX_NEXT : verdict;
}
