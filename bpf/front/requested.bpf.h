/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Requested: first bytes that come before the end of a handshake which the kernel keeps (a request socket).
 *
 * Problem: these bytes end the handshake and reach the server at once, so no request is seen to begin on a socket. This happens
 * wherever the kernel answers SYNs without cookies: a reused TIME_WAIT, monitor mode, admission below its level. A client can
 * leave out its bare ACK, and packets of one batch pass here before the first of them has reached TCP.
 * How: as with a cookie of ours, except that the handshake's numbers stand in the request socket, and nothing is held. Of a
 * header that is not complete only the handshake's end passes: its bytes come again, and then meet the connection. Where the
 * server wants no connection without bytes (TCP_DEFER_ACCEPT: Apache as it comes), they pass, and their copy waits for the rest.
 */
#pragma once

#include "early.bpf.h"
#include "ends.bpf.h"
#include "grow.bpf.h"
#include "guard.bpf.h"
#include "kernel_cookie.bpf.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

/* Whether its sender has seen our SYN-ACK: a forged packet must not have a verdict. `first`: and it begins the stream. */
static __always_inline bool handshake_ends(struct bpf_sock *sk, const struct packet *p, bool first)
{
	/* the helper for this cast knows plain TCP alone, not what multipath TCP derives from it */
	struct tcp_request_sock *request = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));

	return p->ack == request->snt_isn + 1 && (!first || p->seq == request->rcv_isn + 1);
}

/* The number of the client's SYN. */
static __always_inline __u32 requested_first(struct bpf_sock *sk)
{
	struct tcp_request_sock *request = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));

	return request->rcv_isn;
}

/* Whether the kernel waits for bytes before it makes the socket (TCP_DEFER_ACCEPT), as its tcp_check_req() does. */
static __always_inline bool is_deferred(struct bpf_sock *sk)
{
	struct tcp_request_sock *request = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_request_sock));
	void *listening = request->req.req.__req_common.skc_listener;
	struct inet_connection_sock *listener =
	    bpf_rdonly_cast(listening, bpf_core_type_id_kernel(struct inet_connection_sock));

	return listening && request->req.req.num_timeout < listener->icsk_accept_queue.rskq_defer_accept;
}

/* What cannot be ruled. */
static __always_inline int requested_wait(const struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : TCX_DROP;
}

/* The bytes of the segment begin the stream. STREAM_UNHELD, or TCX_DROP. A function of its own to the verifier. */
__noinline int unheld_begin(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			    struct stream *stream __arg_nonnull)
{
	if (options_read(skb, p, &stream->with))
		return TCX_DROP;
	stream_begin(stream, p->seq);
	stream->deferred = 0;
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
	bool bytes = p->payload_length || p->odd, ends, cookie = false;
	int verdict;

	if (!segment_guard_find(front))
		return TCX_NEXT;
	if (front->guard->flags & FIEF_GUARD_POLICE)
		cookie = kernel_cookie_check(p);
	/* the kernel takes its cookie beside the request socket too, and behind it as often as it comes */
	front->connected = !cookie;
	if (!requests_ruled(front) || !bytes) {
		if (p->torn)
			return shape_rule(front);
		/* TCP would keep this end behind the half of a head, and the server take that for the whole */
		if (requests_ruled(front) && p->flags & TCP_FIN && !handshake_ends(sk, p, true))
			return requested_wait(front);
		/* of any place in the window, and with any flag, the kernel makes a socket */
		stream->first = cookie ? p->seq - 1 : requested_first(sk);
		return cookie || handshake_ends(sk, p, false) ? HANDSHAKE_ENDS : TCX_NEXT;
	}
	ends = !p->odd && handshake_ends(sk, p, true);
	if (p->odd)
		return shape_rule(front);
	verdict = ends ? unheld_begin(skb, p, stream) : TCX_DROP;
	stream->deferred = is_deferred(sk);
	return requested_verdict(front, verdict);
}

/*
 * Another CPU makes the socket at this moment, from the segment before: nothing can be known of it yet, and what came to it
 * now would be taken unruled. It goes round, or the client sends it again. A guard that watches holds nothing up: it rules the
 * bytes as if their numbers were good, and spoils a count at worst.
 */
static __always_inline int begun_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	const struct packet *p = &front->packet;

	if (!segment_guard_find(front) || !front->guard->shapes)
		return TCX_NEXT;
	if (!(front->guard->flags & FIEF_GUARD_MONITOR)) {
		early_send(skb);
		return TCX_DROP;
	}
	return p->odd ? TCX_NEXT : requested_verdict(front, unheld_begin(skb, p, stream));
}
