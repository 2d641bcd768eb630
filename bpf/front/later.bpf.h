/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Later: requests on a connection that has its socket. These are the requests after the first, and the first where the kernel
 * made the connection by itself (admission below its level, monitor mode, a reused TIME_WAIT).
 *
 * Problem: a persistent connection would have one verdict for all of its requests.
 * How: the label tells where the next request begins: end of the header + Content-Length. Bytes before that place pass unread.
 * From there on bytes are copied as they pass, in order; the segment that completes a header waits for the verdict. The label
 * takes the request's container, and the server's thread follows the label when it reads. A refused client gets its answer, the
 * socket a reset in the client's name. A socket that the core has not labelled gets its label here.
 * Only bytes that TCP would take are ruled (taken.bpf.h). A verdict counts for the bytes that it was about: until TCP has taken
 * them, others in their place are dropped (heads.bpf.h). Where a body comes in chunks the label tells where the next of its
 * lines begins (chunks.bpf.h). Three cases are for the policy to refuse: unreadable bytes, half a request whose begin was
 * displaced, and bytes after a gap that the door never saw. Both sides are then reset. A packet too long for one go passes as
 * far as it was ruled, and the rest comes again. The end of the client's side ends half a request too.
 * Limits: the listening socket stays that of the first request. Several requests in one segment share the strictest verdict.
 * Under TLS (the records before encrypted bytes are ruled: records.bpf.h), and after a request for another protocol, the
 * connection is no longer ruled and keeps its container. A connection older than the guard cannot be told from one whose
 * verdict was displaced. Under other rules than those that let it pass unread, TLS cannot be told from HTTP.
 */
#pragma once

#include "next.bpf.h"
#include "noted.bpf.h"
#include "refuse.bpf.h"
#include "repeated.bpf.h"
#include "tail.bpf.h"
#include "tracked.bpf.h"

/*
 * Whether the server owes the answer to an earlier request of the connection, or a part of it: not all that it has said is acknowledged, or
 * nothing has left since that request was ruled. Once that was so it may be again unseen: of two requests the first may be answered.
 */
static __always_inline bool is_unanswered(const struct packet *p, const struct connection *on)
{
	if (is_begin(on))
		return false;
	return on->label->flags & FIEF_LABEL_PIPELINED || is_owed_yet(on->tcp, on->label) ||
	       is_unacknowledged(on->tcp, p);
}

static __always_inline int requests_rule(struct __sk_buff *skb, struct front_context *front, struct connection *on,
					 struct stream *stream)
{
	struct head_ranges *ranges = on->ranges;
	int verdict = LATER_AGAIN, i;

	stream->unanswered = is_unanswered(&front->packet, on);
	stream->acknowledged = acknowledged_to(&front->packet, on->tcp);
	/* before `next` goes on: a reader of that, and of this behind it, then looks closer */
	__sync_fetch_and_and(&on->label->flags, ~FIEF_LABEL_TAKEN);
	heads_forget(ranges, on->tcp->rcv_nxt);
	if (on->label->flags & FIEF_LABEL_TAIL)
		verdict = tail_rule(front, on, stream);
	if (verdict == LATER_AGAIN && is_behind(ranges->read, front->packet.seq) && ranges->first != ranges->count)
		verdict = repetition_rule(skb, front, stream, ranges);
	if (verdict == LATER_REFUSED)
		return later_refuse(skb, front, stream, on->tcp);
	if (verdict != LATER_AGAIN)
		return verdict;
	if (!(on->label->flags & FIEF_LABEL_TRACKED))
		return TCX_NEXT;
	readings_allow();
	bpf_for (i, 0, 2 * REQUESTS_MOST) {
		if ((i >= REQUESTS_MOST || readings_spent()) && !(on->label->flags & BODY_STATES))
			break;
		stream->from = heads_end(&front->packet, ranges, on->label->next);
		stream->read = stream->from;
		verdict = later_rule(skb, front, on, stream);
		if (verdict != LATER_REFUSED && is_behind(stream->read, stream->from)) {
			heads_note(skb, &front->packet, stream, ranges, stream->from);
			ranges->read = stream->read;
		}
		if (verdict != LATER_AGAIN)
			break;
	}
	if (verdict == LATER_AGAIN) {
		stream->read = on->label->next;
		verdict = is_behind(packet_end(&front->packet), stream->read) ? LATER_CUT : TCX_NEXT;
	}
	if (verdict == LATER_CUT)
		verdict = front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : heads_cut(skb, &front->packet, stream);
	if (verdict == LATER_REFUSED)
		return later_refuse(skb, front, stream, on->tcp);
	return verdict == TCX_NEXT && front->ruled && front->guard->queue ? QUEUE_LATER : verdict;
}
