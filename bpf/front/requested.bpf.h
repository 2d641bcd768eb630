/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Requested: the first bytes of a connection whose handshake the kernel keeps (a request socket), before its end.
 *
 * Problem: these bytes end the handshake and reach the server at once, so that no request is seen to begin on a socket.
 * It is so wherever the kernel answers SYNs without cookies: a reused TIME_WAIT, monitor mode, admission below its level.
 * A client can leave out its bare ACK, and packets of one batch pass here before the first of them has reached TCP.
 * How: as with a cookie, but that the handshake's numbers stand in the request socket. A header that is not complete
 * comes again, and then meets the connection.
 */
#pragma once

#include "guard.bpf.h"
#include "stream.bpf.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

/* Whether its sender has seen our SYN-ACK: a forged packet must not have a verdict. */
static __always_inline bool handshake_ends(struct bpf_sock *sk, const struct packet *p)
{
	/* the helper for this cast knows plain TCP alone, not what multipath TCP derives from it */
	struct tcp_request_sock *request = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));

	return p->ack == request->snt_isn + 1 && p->seq == request->rcv_isn + 1;
}

/* No verdict yet. */
static __always_inline int requested_wait(const struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : TCX_DROP;
}

/* A verdict, or STREAM_ENDS. */
static __noinline int request_look(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk,
				   struct stream *stream)
{
	struct packet *p = &front->packet;

	if (!segment_guard_find(front) || !requests_ruled(front))
		return TCX_NEXT;
	if (p->odd)
		return shape_rule(front);
	if (!handshake_ends(sk, p) || options_read(skb, p, &stream->with))
		return requested_wait(front);
	stream_begin(stream, p->seq);
	return stream_append(skb, p, stream, 0) < 0 ? requested_wait(front) : STREAM_ENDS;
}
