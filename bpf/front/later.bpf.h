/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Later: requests on a connection that has its socket: those after the first, and the first where the kernel made the
 * connection by itself (admission below its level, monitor mode, a reused TIME_WAIT).
 *
 * Problem: a persistent connection would have one verdict for all of its requests.
 * How: the label tells where the next request begins: end of the header + Content-Length. What lies before passes unread.
 * From there on bytes are copied as they pass, in order; the segment that completes a header waits for the verdict. The
 * label takes the request's container, the server follows it when it reads. A refused client gets its answer, the socket
 * a reset in the client's name. A socket that the core has not labelled gets its label here.
 * Limits: the listening socket stays that of the first request. Several requests in one segment share the strictest
 * verdict; after a body whose length is not told (chunked), after REQUESTS_MOST requests in one segment, and under TLS
 * the connection is no longer ruled (FIEF_REQUEST_UNTRACKED) and keeps its container. What was ruled passes as ruled: who
 * forges his own segments can have one ruled that TCP drops (a wrong checksum, an old timestamp) and send other words in
 * its place. First requests are ruled until TCP has taken them.
 */
#pragma once

#include "admit.bpf.h"
#include "guard.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/labels.bpf.h"

#define LATER_AGAIN -2 /* TCX_NEXT is -1 */

static __always_inline struct fief_container *labelled_container(struct fief_ref ref)
{
	struct fief_container *c = bpf_map_lookup_elem(&containers, &ref.id);

	return c && c->generation == ref.generation ? c : NULL;
}

/* The sockets of a container are counted once somebody has received from them. */
static __always_inline void label_move(struct fief_label *label, struct fief_ref to)
{
	struct fief_container *c;

	if (label->flags & FIEF_LABEL_HOLDS ||
	    (label->container.id == to.id && label->container.generation == to.generation))
		return;
	if (label->flags & FIEF_LABEL_COUNTED) {
		c = labelled_container(label->container);
		if (c)
			__sync_fetch_and_add(&c->sockets, -1);
		c = labelled_container(to);
		if (c)
			__sync_fetch_and_add(&c->sockets, 1);
	}
	label->container = to;
}

static __always_inline int later_untrack(struct front_context *front, struct fief_label *label)
{
	__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_TRACKED);
	verdict_count(front, label->container, FIEF_NO_ID, FIEF_REQUEST_UNTRACKED, false);
	return TCX_NEXT;
}

/* The client's answer goes out as a copy; the packet itself becomes the reset of its socket. */
static __noinline int later_refuse(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				   struct tcp_sock *tcp)
{
	struct packet *p = &front->packet;

	if (options_read(skb, p, &stream->with))
		return TCX_DROP;
	p->ack = tcp->snd_nxt;
	stream->with.echo = cookie_clock_ms(front->now) + tcp->tsoffset;
	return answer_and_reset(skb, front, stream, tcp->rcv_nxt);
}

/* Begins the stream with what was kept of the request that starts at `next`. */
static __noinline void later_find(const struct packet *p, struct stream *stream, __u32 next)
{
	struct fief_flow_key key;
	struct fief_pending *kept;
	__u32 length;

	stream_begin(stream, next);
	flow_key(p, &key);
	kept = bpf_map_lookup_elem(&pending, &key);
	if (!kept || kept->first != next - 1 || kept->cookie != next)
		return;
	length = kept->length;
	if (!length || length >= FIEF_HEADER_MAX || bpf_probe_read_kernel(stream->bytes, length, kept->bytes))
		return;
	stream->length = length;
}

/* Rules the request at label->next with what the packet adds to it. A verdict, or LATER_AGAIN: the packet has more. */
static __noinline int later_rule(struct __sk_buff *skb, struct front_context *front, struct fief_label *label,
				 struct tcp_sock *tcp, struct stream *stream)
{
	struct packet *p = &front->packet;
	__u32 length, at, end = p->seq + p->payload_length;
	struct ruling *ruling = &stream->ruling;

	later_find(p, stream, label->next);
	at = label->next + stream->length;
	if ((__s32)(p->seq - at) > 0)
		/* a gap: what is behind it must not complete a header unseen, and comes again */
		return (__s32)(tcp->rcv_nxt - at) > 0 ? later_untrack(front, label) : TCX_DROP;
	if ((__s32)(end - at) <= 0)
		return TCX_NEXT;
	if (stream_append(skb, p, stream, at - p->seq) < 0)
		return later_untrack(front, label);
	length = stream->length;
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, ruling) == REQUEST_NEED_MORE) {
		if (stream->first + 1 + stream->length != end || !hold_keep(p, stream))
			return later_untrack(front, label);
		return TCX_NEXT;
	}
	if (ruling->refused)
		return later_refuse(skb, front, stream, tcp);
	label_move(label, ruling->container);
	if (!(front->guard->flags & FIEF_GUARD_LATER)) {
		__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_TRACKED);
		return TCX_NEXT;
	}
	if (!ruling->tracked)
		return later_untrack(front, label);
	label->next += ruling->head + ruling->body;
	return (__s32)(end - label->next) > 0 ? LATER_AGAIN : TCX_NEXT;
}

static __always_inline int requests_rule(struct __sk_buff *skb, struct front_context *front, struct fief_label *label,
					 struct tcp_sock *tcp)
{
	struct stream *stream = stream_get();
	int verdict, i;

	if (!stream)
		return TCX_NEXT;
	bpf_for (i, 0, REQUESTS_MOST) {
		verdict = later_rule(skb, front, label, tcp, stream);
		if (verdict != LATER_AGAIN)
			return verdict;
	}
	return later_untrack(front, label);
}

/* Whether the kernel made this connection, and this is its first request. */
static __always_inline bool first_of_kernel(struct front_context *front, struct fief_label *label, struct tcp_sock *tcp)
{
	if (tcp->bytes_received || label->listener == FIEF_NO_LISTENER || !segment_guard_find(front) ||
	    !front->guard->shapes)
		return false;
	if (!(front->guard->flags & FIEF_GUARD_MONITOR) && !admit_in_force(front))
		return false;
	label->next = tcp->rcv_nxt;
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_TRACKED);
	return true;
}

/*
 * Labels a socket that has no label: the core has labelled those of managed units, but a guard stands before every
 * server. The verdict upon its first request is still where the gate left it. NULL: no request of it is ruled.
 */
static __noinline struct fief_label *label_make(struct front_context *front, struct bpf_sock *sk, struct tcp_sock *tcp)
{
	__u32 begin = tcp->rcv_nxt - (__u32)tcp->bytes_received;
	struct fief_label fresh = {};
	struct fief_admitted *ruled;
	struct fief_flow_key key;

	if (!segment_guard_find(front) || !front->guard->shapes)
		return NULL;
	fresh.listener = front->listener->index;
	flow_key(&front->packet, &key);
	ruled = admitted_spend(&key, begin);
	if (ruled) {
		fresh.container = ruled->container;
		fresh.next = ruled->next;
		fresh.flags = ruled->tracked ? FIEF_LABEL_TRACKED : 0;
	} else {
		fresh.container = client_container(front);
		if (tcp->bytes_received) /* older than the guard, or its verdict gave way to later ones */
			verdict_count(front, fresh.container, FIEF_NO_ID, FIEF_REQUEST_UNTRACKED, false);
	}
	return bpf_sk_storage_get(&labels, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Bytes to a socket that is there. */
static __always_inline int data_arrives(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk)
{
	struct packet *p = &front->packet;
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	struct tcp_sock *tcp;

	/* where an odd packet ends is not known for sure */
	if (label && label->flags & FIEF_LABEL_TRACKED && !p->odd &&
	    (__s32)(p->seq + p->payload_length - label->next) <= 0)
		return TCX_NEXT;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return TCX_NEXT;
	if (!label) {
		label = label_make(front, sk, tcp);
		if (!label)
			return TCX_NEXT;
	}
	if (label->flags & FIEF_LABEL_TRACKED) {
		if (!segment_guard_find(front))
			return TCX_NEXT;
	} else if (!first_of_kernel(front, label, tcp)) {
		return TCX_NEXT;
	}
	if (p->odd)
		return shape_rule(front);
	return requests_rule(skb, front, label, tcp);
}
