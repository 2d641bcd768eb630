/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Admit: hands a connection to the server once its first bytes are ruled.
 *
 * Problem: a server must spend nothing on a connection before the door knows its request, and the connection must reach the
 * listening socket of the request's class.
 * How: with the verdict (begin.bpf.h) the kernel gets the contents of the cookie (bpf_sk_assign_tcp_reqsk) and a listening
 * socket; the same segment then makes the socket. The label of the socket takes its container from `admitted`.
 * Limits: a full accept queue makes the client send again, as in the kernel.
 */
#pragma once

#include "admitted.bpf.h"
#include "flow/multipath.bpf.h"
#include "handshake.bpf.h"
#include "listening.bpf.h"
#include "maps/class_listeners.bpf.h"
#include "owed.bpf.h"

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym;

enum assigned { ASSIGNED, ASSIGN_REFUSED, ASSIGN_FULL };

/* Whether the listener's accept queue takes the connection. */
static __always_inline bool has_room(const struct front_context *front, struct tcp_sock *listening)
{
	return front->carried ? queue_has_room(listening) : !queue_full(listening);
}

static __always_inline enum assigned assign_to(struct __sk_buff *skb, struct tcp_sock *listening,
					       const struct front_context *front, const struct handshake *with)
{
	struct bpf_tcp_req_attrs attributes = {};

	if (!takes_family(listening, &front->packet))
		return ASSIGN_REFUSED;
	if (!has_room(front, listening))
		return ASSIGN_FULL;
	attributes.rcv_tsval = with->timestamp;
	attributes.rcv_tsecr = with->echo;
	attributes.mss = with->segment_size;
	attributes.tstamp_ok = with->timestamps;
	attributes.sack_ok = with->sack;
	attributes.ecn_ok = with->ecn;
	if (with->scale != SCALE_NONE) {
		attributes.wscale_ok = 1;
		attributes.snd_wscale = with->scale;
		attributes.rcv_wscale = with->receive_scale;
	}
	if (bpf_sk_assign_tcp_reqsk(skb, (struct sock *)listening, &attributes, sizeof(attributes)))
		return ASSIGN_REFUSED;
	return ASSIGNED;
}

/* A socket of the class that takes it; several serve one class during a restart, or one for each family. */
static __always_inline enum assigned assign_to_class(struct __sk_buff *skb, struct front_context *front,
						     struct fief_ref container, const struct handshake *with)
{
	struct fief_class_key key = class_key(front->listener.index, container);
	enum assigned now, best = ASSIGN_REFUSED;
	int turn;

	bpf_for (turn, 0, FIEF_CLASS_TURNS) {
		struct bpf_sock *sk = bpf_map_lookup_elem(&class_listeners, &key);
		struct tcp_sock *listening;

		key.turn++;
		if (!sk)
			continue;
		listening = bpf_skc_to_tcp_sock(sk);
		now = listening ? assign_to(skb, listening, front, with) : ASSIGN_REFUSED;
		bpf_sk_release(sk);
		if (now == ASSIGNED)
			return ASSIGNED;
		if (now == ASSIGN_FULL)
			best = ASSIGN_FULL;
	}
	return best;
}

/*
 * Lets the packet make the connection. `found` is the listening socket that the kernel's lookup gives; NULL: the kernel
 * has made it as far as that. One of multipath TCP takes no request socket of ours, and its cookies are the kernel's: the packet
 * bears it, and the kernel makes the connection from it as if it had not been held. `hash`: of the flow.
 */
static __noinline int admit_of(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *found,
			       const struct stream *stream, __u64 hash)
{
	bool by_kernel = !found || is_multipath(found);
	enum assigned done = ASSIGN_REFUSED;

	admitted_note(skb, front, &stream->admitted, hash);
	if (by_kernel && (!found || has_room(front, found))) {
		mark_add(skb, MARK_BEGINS);
		return TCX_NEXT;
	}
	if (!by_kernel && front->listener.serve != FIEF_SERVE_SHARED)
		done = assign_to_class(skb, front, stream->admitted.container, &stream->with);
	if (done == ASSIGN_REFUSED)
		done = assign_to(skb, found, front, &stream->with);
	if (done == ASSIGNED) {
		front->connected = true; /* nobody looks for a listening socket */
		return TCX_NEXT;
	}
	admitted_fail(hash, stream->admitted.begin);
	verdict_count(front, stream->admitted.container, stream->admitted.rule, FIEF_SYN_QUEUE, false);
	return TCX_DROP;
}

/* The same where nobody has needed the hash before. */
static __always_inline int admit(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *found,
				 const struct stream *stream)
{
	return admit_of(skb, front, found, stream, packet_flow(&front->packet));
}
