/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Late: the packet that makes a request whole whose head came before.
 *
 *   head, half of the body     takes a place, which lasts only for a moment: the client owes bytes (places.bpf.h)
 *   more of it                 passes
 *   the last bytes, in time    the place now lasts as long as that of any request
 *   the last bytes, later      take a place again, beside those that have got one meanwhile
 *
 * Problem: most servers begin to work when a request is whole. A request whose body came a moment after its head would be worked on
 * without a place, and others beside it.
 * How: of a request of a queue that has a body, the label says OWES until its end has come, in order and with a good checksum: else
 * a client could hold a place with a packet that TCP does not take. Bytes whose begin has not reached TCP go round (early.bpf.h).
 * The end waits for nobody: a server that has no thread but the one which waits for it would read none of those that went instead.
 * Limits: who keeps the end of a body back passes those that wait; its place and its CPU time are counted. Not counted is an end that comes
 * before lost bytes of the same body, and one whose server has said something since the head.
 */
#pragma once

#include "early.bpf.h"
#include "queue.bpf.h"
#include "taken.bpf.h"
#include "tracked.bpf.h"

/* Whether the request, of which TCP has not all, ends within the packet. */
static __always_inline bool makes_whole(const struct connection *on, const struct packet *p)
{
	const __u32 more = BODY_STATES | FIEF_LABEL_BODY;
	__u32 end = p->seq + p->payload_length, flags = on->label->flags;

	return flags & FIEF_LABEL_TRACKED && !(flags & more) && is_behind(end, on->tcp->rcv_nxt) &&
	       !is_behind(on->label->next, end);
}

/* Of a packet that the rules let pass, while a body is owed. */
static __noinline int late_rule(struct __sk_buff *skb, struct front_context *front, const struct connection *on)
{
	struct packet *p = &front->packet;
	struct stream *stream;

	if (!makes_whole(on, p) || !segment_guard_find(front) || !front->guard->queue)
		return TCX_NEXT;
	if (is_behind(p->seq, on->tcp->rcv_nxt))
		return !(front->guard->flags & FIEF_GUARD_MONITOR) && early_send(skb) ? TCX_DROP : TCX_NEXT;
	stream = stream_get();
	if (!stream || !is_owed_yet(on->tcp, on->label))
		return TCX_NEXT;
	return would_be_taken(skb, p, on->tcp, &stream->with) ? QUEUE_WHOLE : TCX_NEXT;
}
