/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Turns: what a client asks where its requests cannot be read, under TLS or by another protocol than HTTP/1.
 *
 *   client   startup        query          query
 *   server          ready          rows           rows
 *            turn 1         turn 2         turn 3
 *
 * Problem: the queue orders requests, and such a connection shows none. Ordered by its first bytes alone, a pool of persistent
 * connections to a database, or a client that keeps its TLS connection, is out of any order.
 * How: the client's bytes after the server's last are a turn, until the server's first byte. The first segment of a turn takes a
 * place, and waits for one; what else comes of it while the place lasts goes with it. The server cannot read what comes behind a
 * segment that waits.
 * Limits: bytes that are sent before the answer has come belong to the same turn. Bytes that are not answered hold a place until it
 * runs out; short ones as of HTTP/2, whose frames of control nobody answers, only as long as a request whose body is owed. What
 * follows a confirmed upgrade is no turn: neither side waits for the other there.
 */
#pragma once

#include "cut.bpf.h"
#include "flow/multipath.bpf.h"
#include "guard.bpf.h"
#include "places.bpf.h"
#include "taken.bpf.h"
#include "tracked.bpf.h"

#define TURN_SHORT	96 /* bytes: a few frames of HTTP/2 without a request, each in a record of its own */
#define TLS_APPLICATION 0x17

/* Whether the server has a turn of this flow that it has not begun to answer, as far as the client has `acknowledged` it too. */
__noinline int turn_lasts(const struct packet *p __arg_nonnull, __u32 acknowledged)
{
	struct fief_served *served;
	struct fief_flow_key key;

	flow_key(p, &key);
	served = bpf_map_lookup_elem(&queue_serves, &key);
	return served && !has_run_out(served) && !is_behind(acknowledged, served->answer);
}

/*
 * Whether it may be frames that nobody answers: short records of TLS, or such frames in the clear. Of a later turn. By the first byte
 * that TCP does not have; not where it has some behind a gap, which this one may close.
 */
static __noinline bool may_stay_unanswered(struct __sk_buff *skb, const struct packet *p, struct tcp_sock *tcp,
					   const struct fief_admitted *entry)
{
	__u32 known = tcp->rcv_nxt - p->seq;
	__u8 first = 0;

	if (!(entry->tracked & FIEF_LABEL_TURNS) || known >= p->payload_length ||
	    p->payload_length - known > TURN_SHORT || BPF_CORE_READ(tcp, out_of_order_queue.rb_node))
		return false;
	bpf_skb_load_bytes(skb, p->payload + known, &first, 1);
	return !first || first == TLS_APPLICATION;
}

/* Bytes on a connection that is ruled no longer, and has turns. TCX_NEXT, or QUEUE_LATER: a turn begins. */
static __noinline int turn_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *tcp)
{
	struct packet *p = &front->packet;
	struct stream *stream;
	__u32 acknowledged;

	/* on a connection of several paths, which is older than the policy, bytes come with what only their own packet bears */
	if (!front->guard->queue || !(front->guard->flags & FIEF_GUARD_TURNS) || is_multipath(tcp))
		return TCX_NEXT;
	if (p->odd)
		return shape_rule(front);
	/* behind a gap it cannot be read before the begin has come; and what TCP has is no news */
	if (is_behind(p->seq, tcp->rcv_nxt) || !is_behind(p->seq + p->payload_length, tcp->rcv_nxt))
		return TCX_NEXT;
	acknowledged = acknowledged_to(p, tcp);
	if (turn_lasts(p, acknowledged))
		return TCX_NEXT;
	stream = stream_get();
	if (!stream)
		return TCX_NEXT;
	if (!would_be_taken(skb, p, tcp, &stream->with))
		return untaken_strip(skb, front, stream, tcp);
	front->queued = true;
	stream->unanswered = 0;
	stream->acknowledged = acknowledged;
	return QUEUE_LATER;
}
