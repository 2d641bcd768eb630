/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Later: requests on a connection that has its socket: those after the first, and the first where the kernel made the
 * connection by itself (admission below its level, monitor mode, a reused TIME_WAIT).
 *
 * Problem: a persistent connection would have one verdict for all of its requests.
 * How: the label tells where the next request begins: end of the header + Content-Length. What lies before passes unread.
 * From there on bytes are copied as they pass, in order; the segment that completes a header waits for the verdict. The
 * label takes the request's container, the server follows it when it reads. A refused client gets its answer, the socket
 * a reset in the client's name. A socket that the core has not labelled gets its label here. Only what TCP would take is
 * looked at (taken.bpf.h). A verdict counts for the bytes that it was about: until TCP has taken them, others in their
 * place are dropped (heads.bpf.h).
 * Limits: the listening socket stays that of the first request. Several requests in one segment share the strictest
 * verdict; after a body whose length is not told (chunked), after REQUESTS_MOST requests or FIEF_HEADER_MAX bytes of
 * them in one segment, and under TLS the connection is no longer ruled (FIEF_REQUEST_UNTRACKED) and keeps its container.
 */
#pragma once

#include "admit.bpf.h"
#include "guard.bpf.h"
#include "isolated.bpf.h"
#include "taken.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/labels.bpf.h"

/* TCX_NEXT is -1 */
#define LATER_AGAIN   -2 /* the packet has more */
#define LATER_REFUSED -3 /* as stream->ruling says */

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

/* Rules the request at label->next with what the packet adds to it. A verdict, or LATER_*. */
static __noinline int later_rule(struct __sk_buff *skb, struct front_context *front, struct fief_label *label,
				 struct tcp_sock *tcp, struct stream *stream)
{
	struct packet *p = &front->packet;
	__u32 length, at, end = p->seq + p->payload_length;
	struct ruling *ruling = &stream->ruling;

	isolated_keep(front, label->container);
	later_find(p, stream, label->next);
	at = label->next + stream->length;
	if (is_behind(p->seq, at))
		/* a gap: what is behind it must not complete a header unseen, and comes again */
		return is_behind(tcp->rcv_nxt, at) ? later_untrack(front, label) : TCX_DROP;
	if (!is_behind(end, at))
		return TCX_NEXT;
	if (stream_append(skb, p, stream, at - p->seq) < 0)
		return later_untrack(front, label);
	length = stream->length;
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, 0, ruling) == REQUEST_NEED_MORE) {
		if (stream->first + 1 + stream->length != end || !hold_keep(p, stream))
			return later_untrack(front, label);
		stream->read = end;
		return TCX_NEXT;
	}
	if (ruling->refused)
		return LATER_REFUSED;
	label_move(label, ruling->container);
	if (!(front->guard->flags & FIEF_GUARD_LATER)) {
		__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_TRACKED);
		return TCX_NEXT;
	}
	if (!ruling->tracked)
		return later_untrack(front, label);
	stream->read = label->next + ruling->head;
	label->next = stream->read + ruling->body;
	return is_behind(end, label->next) ? LATER_AGAIN : TCX_NEXT;
}

/* Holds what comes again against what was ruled. A verdict, or LATER_AGAIN: the packet may pass, as far as this goes. */
static __always_inline int repetition_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					   struct head_ranges *ranges)
{
	enum heads is = heads_compare(skb, &front->packet, stream, ranges);
	bool watched = front->guard->flags & FIEF_GUARD_MONITOR;

	if (is == HEADS_OTHER)
		verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_REQUEST_REPLACED, watched);
	if (is == HEADS_SAME || watched)
		return LATER_AGAIN;
	return is == HEADS_PART ? heads_cut(skb, &front->packet, stream) : TCX_DROP;
}

static __always_inline int requests_rule(struct __sk_buff *skb, struct front_context *front, struct fief_label *label,
					 struct tcp_sock *tcp, struct head_ranges *ranges, struct stream *stream)
{
	__u32 from = is_behind(ranges->read, label->next) ? ranges->read : label->next;
	int verdict = LATER_AGAIN, i;

	heads_forget(ranges, tcp->rcv_nxt);
	if (is_behind(ranges->read, front->packet.seq) && ranges->first != ranges->count)
		verdict = repetition_rule(skb, front, stream, ranges);
	if (verdict != LATER_AGAIN)
		return verdict;
	stream->read = from;
	if (!heads_room(&front->packet, ranges, from) && !(front->guard->flags & FIEF_GUARD_MONITOR))
		/* TCP has to take something first: what was ruled of this, if it bears any */
		return is_behind(from, front->packet.seq) ? heads_cut(skb, &front->packet, stream) : TCX_DROP;
	bpf_for (i, 0, REQUESTS_MOST) {
		verdict = later_rule(skb, front, label, tcp, stream);
		if (verdict != LATER_AGAIN)
			break;
	}
	if (verdict == LATER_AGAIN)
		return later_untrack(front, label);
	if (is_behind(stream->read, from) && label->flags & FIEF_LABEL_TRACKED) {
		ranges->read = stream->read;
		__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_TAKEN);
		if (!heads_note(skb, &front->packet, stream, ranges, from))
			later_untrack(front, label);
	}
	return verdict == LATER_REFUSED ? later_refuse(skb, front, stream, tcp) : verdict;
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
 * server. The verdict upon its first request is still where the door left it. NULL: no request of it is ruled.
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

/* Whether a packet on a tracked connection may pass unread: it ends before the next request, and replaces no head. */
static __always_inline bool is_settled(const struct packet *p, struct fief_label *label, struct tcp_sock *tcp,
				       const struct head_ranges *ranges)
{
	bool taken = true;

	if (ranges)
		taken = !is_behind(ranges->read, tcp->rcv_nxt);
	else
		taken = tcp->bytes_received;
	if (!ranges && !taken && !is_behind(p->seq, tcp->rcv_nxt))
		label->next = tcp->rcv_nxt; /* TCP has not taken what made the socket: it is ruled once more */
	if (is_behind(p->seq + p->payload_length, label->next))
		return false;
	if (taken)
		__sync_fetch_and_or(&label->flags, FIEF_LABEL_TAKEN);
	return taken || !ranges || !is_behind(ranges->read, p->seq);
}

/* What is remembered of the heads on this connection; `ranges`: if there is something. NULL: no memory. */
static __always_inline struct head_ranges *heads_get(struct bpf_sock *sk, struct tcp_sock *tcp,
						     struct head_ranges *ranges)
{
	if (ranges)
		return ranges;
	ranges = bpf_sk_storage_get(&heads, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (ranges)
		ranges->read = tcp->rcv_nxt;
	return ranges;
}

/* Bytes to a socket that is there. */
static __noinline int data_arrives(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk)
{
	struct packet *p = &front->packet;
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	const __u32 settled = FIEF_LABEL_TRACKED | FIEF_LABEL_TAKEN;
	struct head_ranges *ranges = NULL;
	struct stream *stream;
	struct tcp_sock *tcp;
	bool first = false;

	/* where an odd packet ends is not known for sure */
	if (label && (label->flags & settled) == settled && !p->odd &&
	    !is_behind(p->seq + p->payload_length, label->next))
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
		ranges = bpf_sk_storage_get(&heads, sk, 0, 0);
		if (!p->odd && is_settled(p, label, tcp, ranges))
			return TCX_NEXT;
		if (!segment_guard_find(front))
			return TCX_NEXT;
	} else {
		first = first_of_kernel(front, label, tcp);
		if (!first)
			return TCX_NEXT;
	}
	if (p->odd)
		return shape_rule(front);
	stream = stream_get();
	if (!stream)
		return TCX_NEXT;
	if (!would_be_taken(skb, p, tcp, &stream->with))
		return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : packet_cut(skb, p, stream, 0);
	if (first && p->seq == tcp->rcv_nxt)
		admitted_by_kernel(front);
	ranges = heads_get(sk, tcp, ranges);
	return ranges ? requests_rule(skb, front, label, tcp, ranges, stream) : TCX_DROP;
}
