/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Next: what stands where a connection's next request begins is ruled, with what the packet adds to it.
 *
 *   more of a long body    is passed by
 *   a gap before it        comes again
 *   a line of chunks, a body that may be a request, a record of TLS, a request: each by its own rules
 *
 * How: bytes are copied as they pass, in order; the segment that completes a header waits for the verdict.
 */
#pragma once

#include "added.bpf.h"
#include "behind.bpf.h"
#include "chunked.bpf.h"
#include "halves.bpf.h"
#include "inside.bpf.h"
#include "isolated.bpf.h"
#include "judge.bpf.h"
#include "keep.bpf.h"
#include "noted.bpf.h"
#include "tracked.bpf.h"

/* Finds what was kept of the request that starts at label->next, and leaves it where it is. */
static __noinline void later_find(const struct packet *p, struct stream *stream, const struct fief_label *label)
{
	__u32 next = label->next;

	if (!(label->flags & FIEF_LABEL_HALF) || !half_look(p, next, HALF_LATER, stream) || stream->first != next - 1 ||
	    stream->length >= FIEF_HEADER_MAX)
		stream_begin(stream, next);
}

/* Puts what was found into the stream. */
static __always_inline bool later_load(const struct packet *p, struct stream *stream)
{
	if (!stream->length)
		return true;
	half_done(stream); /* until it is kept again */
	return half_load(p, stream);
}

/*
 * Puts the packet's bytes from `skip` on behind what was found, which stays where it is as long as there can be no verdict. A
 * verdict, or LATER_AGAIN: all of it is in the stream.
 */
static __noinline int later_join(struct __sk_buff *skb, struct front_context *front, struct connection *on,
				 struct stream *stream, __u32 skip)
{
	struct packet *p = &front->packet;
	enum half_added added = HALF_READY;
	__u32 known = stream->length;
	/* no line of chunks is whole by that */
	bool ended = p->flags & TCP_FIN && !(on->label->flags & CHUNK_STATES);

	if (known) {
		stream->length = 0;
		if (stream_append(skb, p, stream, skip) < 0)
			return TCX_DROP;
		stream->read = p->seq + skip + stream->length;
		added = half_add(p, stream, known, 0, ended);
		stream->length = known;
	}
	if (added == HALF_KEPT)
		return stream->read == p->seq + p->payload_length ? TCX_NEXT : LATER_CUT;
	/* refused in silence: what else is refused has ended its connection */
	if (added == HALF_SPOILT || added == HALF_REFUSED || !later_load(p, stream))
		return TCX_DROP;
	if (stream_append(skb, p, stream, skip) < 0)
		return later_unread(front, on->label, stream, FIEF_UNREAD_TOO_LONG);
	return LATER_AGAIN;
}

/* The body at label->next is passed by, or what is passed of it at once. */
static __always_inline void later_pass(struct fief_label *label)
{
	__u64 body = label->body;
	__u32 flags = 0;

	label->next += body_pass(&body, &flags);
	label->body = body;
	__sync_fetch_and_and(&label->flags, ~(FIEF_LABEL_INSIDE | FIEF_LABEL_BODY));
	__sync_fetch_and_or(&label->flags, flags);
}

/* The body at label->next, which some servers take for a request, is in the stream as far as it has come. */
static __always_inline int body_rule(struct front_context *front, struct connection *on, struct stream *stream)
{
	__u32 length = stream->length;
	__u64 body = on->label->body;
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	state = inside_rule(front, (const struct request_bytes *)stream->bytes, length, body,
			    on->ended ? RULE_ENDED : 0, &stream->ruling);
	if (state == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	if (state != REQUEST_COMPLETE && stream->ruling.refused)
		return LATER_REFUSED;
	if (state != REQUEST_COMPLETE)
		pipelined_lower(front, on->label, stream->ruling.container);
	stream->read = on->label->next + (body < length ? body : length);
	later_pass(on->label);
	__sync_fetch_and_and(&on->label->flags, ~FIEF_LABEL_HALF);
	return LATER_AGAIN;
}

/* A connection that has its container already; no rule of the listener names that class. */
static __always_inline void isolated_keep(struct front_context *front, struct fief_ref container)
{
	const struct fief_guard *guard = front->guard;

	if (guard->flags & FIEF_GUARD_INTO && container.id == guard->isolate_into.id &&
	    container.generation == guard->isolate_into.generation)
		isolated_set(front);
}

/* Rules what stands at label->next with what the packet adds to it. A verdict, or LATER_*. */
static __noinline int later_rule(struct __sk_buff *skb, struct front_context *front, struct connection *on,
				 struct stream *stream)
{
	struct packet *p = &front->packet;
	__u32 at, end = p->seq + p->payload_length;
	bool ended = p->flags & TCP_FIN && is_behind(end, on->label->next);
	int verdict;

	if (!is_behind(end, on->label->next))
		return TCX_NEXT;
	if (on->label->flags & FIEF_LABEL_BODY) {
		/* TCP has taken what was ruled before long ago, and it stays within the reach of sequence numbers */
		on->ranges->read = on->tcp->rcv_nxt;
		stream->read = stream->from;
		later_pass(on->label);
		return LATER_AGAIN;
	}
	isolated_keep(front, on->label->container);
	if (on->label->flags & FIEF_LABEL_LOST)
		return later_unread(front, on->label, stream, FIEF_UNREAD_OTHER);
	later_find(p, stream, on->label);
	at = on->label->next + stream->length;
	/* an end that comes again, and adds nothing: TCP has counted it too */
	if (p->flags & TCP_FIN && end == at && on->tcp->rcv_nxt == at + 1)
		return TCX_NEXT;
	/* TCP has bytes that are missing here: others displaced them, and what the packet has in their place it does not take */
	if (is_behind(on->tcp->rcv_nxt, at))
		return later_unread(front, on->label, stream, FIEF_UNREAD_NO_ROOM);
	/* a gap: what is behind it must not complete a head unseen, and comes again */
	if (is_behind(p->seq, at))
		return later_wait_for(front);
	if (!heads_room(p, on->ranges, stream->from) && !(front->guard->flags & FIEF_GUARD_MONITOR))
		return LATER_CUT; /* TCP has to take something first */
	if (is_behind(end, at)) {
		verdict = later_join(skb, front, on, stream, at - p->seq);
		if (verdict != LATER_AGAIN)
			return verdict;
	} else if (!ended) {
		return TCX_NEXT;
	} else if (on->label->flags & CHUNK_STATES) {
		half_done(stream); /* nothing comes behind it */
		return TCX_NEXT;
	} else if (later_load(p, stream)) {
		stream->length = end - on->label->next;
	} else {
		return TCX_DROP;
	}
	on->ended = ended && stream->first + 1 + stream->length == end;
	if (on->label->flags & CHUNK_STATES)
		return chunk_rule(front, on, stream);
	if (on->label->flags & FIEF_LABEL_INSIDE)
		return body_rule(front, on, stream);
	return later_judge(front, on, stream);
}
