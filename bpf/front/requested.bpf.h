/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Requested: first bytes that come before the end of a handshake which the kernel keeps (a request socket), or completes from
 * its own cookie below the level of admission.
 *
 * Problem: these bytes end the handshake and reach the server at once, so no request is seen to begin on a socket. This happens
 * wherever the kernel answers SYNs without cookies: a reused TIME_WAIT, monitor mode, admission below its level. A client can
 * leave out its bare ACK, and packets of one batch pass here before the first of them has reached TCP.
 * How: as with a cookie of ours, except that the handshake's numbers stand in the request socket, and nothing is held. Of a
 * header that is not complete only the handshake's end passes: its bytes come again, and then meet the connection.
 */
#pragma once

#include "ends.bpf.h"
#include "grow.bpf.h"
#include "guard.bpf.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

/* Whether its sender has seen our SYN-ACK: a forged packet must not have a verdict. */
static __always_inline bool handshake_ends(struct bpf_sock *sk, const struct packet *p)
{
	/* the helper for this cast knows plain TCP alone, not what multipath TCP derives from it */
	struct tcp_request_sock *request = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));

	return p->ack == request->snt_isn + 1 && p->seq == request->rcv_isn + 1;
}

/* What cannot be ruled. */
static __always_inline int requested_wait(const struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : TCX_DROP;
}

/* No verdict yet. */
static __always_inline int requested_cut(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : packet_cut(skb, &front->packet, stream, 0);
}

/* The bytes of the segment begin the stream. STREAM_UNHELD, or TCX_DROP. A function of its own to the verifier. */
__noinline int unheld_begin(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			    struct stream *stream __arg_nonnull)
{
	if (options_read(skb, p, &stream->with))
		return TCX_DROP;
	stream_begin(stream, p->seq);
	return stream_append(skb, p, stream, 0) < 0 ? TCX_DROP : STREAM_UNHELD;
}

/* A guard that watches drops nothing. */
static __always_inline int requested_verdict(const struct front_context *front, int verdict)
{
	return verdict == TCX_DROP ? requested_wait(front) : verdict;
}

/* A verdict, STREAM_UNHELD, or HANDSHAKE_ENDS. */
static __noinline int request_look(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk,
				   struct stream *stream)
{
	struct packet *p = &front->packet;
	bool ends;

	if (!segment_guard_find(front))
		return TCX_NEXT;
	ends = !p->odd && handshake_ends(sk, p);
	if (!requests_ruled(front) || !(p->payload_length || p->odd))
		return ends ? HANDSHAKE_ENDS : TCX_NEXT;
	if (p->odd)
		return shape_rule(front);
	return requested_verdict(front, ends ? unheld_begin(skb, p, stream) : TCX_DROP);
}

__noinline int unheld_look(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			   struct stream *stream __arg_nonnull, bool ruled)
{
	if (!kernel_cookie_check(p))
		return TCX_NEXT;
	if (!ruled || !p->payload_length)
		return HANDSHAKE_ENDS;
	return unheld_begin(skb, p, stream);
}

/*
 * A segment without a socket, while connections are not held: bytes that make one of the kernel's cookie are ruled. A verdict,
 * STREAM_UNHELD, or HANDSHAKE_ENDS.
 */
static __always_inline int unheld_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	struct packet *p = &front->packet;
	bool ruled = requests_ruled(front);

	if (p->odd)
		return ruled ? shape_rule(front) : TCX_NEXT;
	return requested_verdict(front, unheld_look(skb, p, stream, ruled));
}
