/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Late: the packet that makes a request whole whose head came before.
 *
 *   head, half of the body     takes a place, which lasts only for a moment: the client owes bytes (places.bpf.h)
 *   more of it                 passes
 *   the last bytes, in time    pass, and the place lasts as long as that of any request
 *   the last bytes, later      ask the queue: they wait for a place as a request does
 *
 * Problem: most servers begin to work when a request is whole. A client that keeps the last byte back until its place has run out
 * would pass all that wait, and one that sends its body a moment after the head would be worked on without a place.
 * How: of a request that has its turn of the queue, and whose body has not come, the label says OWES. While it does, no packet
 * passes unseen. Where bytes that TCP keeps lie behind a gap, each packet in order may be the last one.
 * Limits: a server that works on a body as it comes does so without a place once that has run out. One that has begun to answer
 * before it has the body gets a place for the end of it.
 */
#pragma once

#include "places.bpf.h"
#include "taken.bpf.h"
#include "tracked.bpf.h"

/* Whether the place of the packet's request lasts, which the server has not begun to answer. It then does as a whole one's. */
__noinline int place_last(const struct packet *p __arg_nonnull)
{
	struct fief_served *served;
	struct fief_flow_key key;
	struct fief_queue *q;

	flow_key(p, &key);
	served = bpf_map_lookup_elem(&queue_serves, &key);
	if (!served || has_run_out(served) || is_behind(p->ack, served->answer))
		return 0;
	q = queue_get(served->queue);
	if (q)
		served_prolong(q, served, place_ends(q, bpf_ktime_get_ns(), false));
	return 1;
}

/* Whether TCP has the whole request with the packet, as far as that can be known before. */
static __always_inline bool makes_whole(const struct connection *on, const struct packet *p)
{
	const __u32 more = BODY_STATES | FIEF_LABEL_BODY;
	__u32 end = p->seq + p->payload_length;
	struct tcp_sock *tcp = on->tcp;

	if (!is_behind(end, tcp->rcv_nxt) || is_behind(p->seq, tcp->rcv_nxt) || on->label->flags & more)
		return false;
	return end == on->label->next || BPF_CORE_READ(tcp, out_of_order_queue.rb_node);
}

/* Of a packet that the rules let pass, while a body is owed. */
static __noinline int late_rule(struct __sk_buff *skb, struct front_context *front, const struct connection *on)
{
	struct stream *stream;

	if (!makes_whole(on, &front->packet) || !segment_guard_find(front) || !front->guard->queue)
		return TCX_NEXT;
	stream = stream_get();
	if (!stream)
		return TCX_NEXT;
	if (!would_be_taken(skb, &front->packet, on->tcp, &stream->with))
		return packet_strip(skb, front, stream);
	if (place_last(&front->packet))
		return TCX_NEXT;
	front->queued = true;
	return QUEUE_LATER;
}
