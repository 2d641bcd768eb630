/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tail: the end of a first head that is longer than a packet can grow.
 *
 * Problem: the verdict is upon the whole head, of which GROWN_MOST bytes at most reach the server with the packet that makes
 * the connection. The client sends the rest once more. Other bytes in that place would be another request.
 * How: the rest, which is shorter than a range (heads.bpf.h), is kept as begins of requests are (halves.bpf.h). The first
 * packet on the socket makes it the socket's first range: only the same bytes pass. Until TCP has them the client's side must
 * not end.
 * Limits: as of all halves: a client whose bytes gave way to others is refused (`no-room`).
 */
#pragma once

#include "admitted.bpf.h"
#include "heads.bpf.h"
#include "tracked.bpf.h"

_Static_assert(FIEF_HEADER_MAX - GROWN_MOST <= RANGE_MOST, "the rest of a head is one range");

/* Makes the stream that has a head of `head` bytes its rest, behind what the packet bears. */
__noinline int tail_move(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull, __u32 head)
{
	__u32 length = head - GROWN_MOST;

	/* kept apart: of one test for both the verifier of 6.12 learns nothing */
	barrier_var(length);
	if (p->payload_length != GROWN_MOST || !length)
		return false;
	barrier_var(length);
	if (length > RANGE_MOST)
		return false;
	if (bpf_probe_read_kernel(stream->bytes, length, stream->bytes + GROWN_MOST))
		return false;
	stream_begin(stream, p->seq + GROWN_MOST);
	stream->length = length;
	return true;
}

/* Notes the rest of the head of a connection that began with `begin`, as the first of its ranges. False: it is not kept. */
__noinline int tail_note(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull,
			 struct head_ranges *ranges __arg_nonnull, __u32 begin)
{
	__u32 from = begin + GROWN_MOST, zero = 0, length;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	struct head_range *range;

	if (!secret || !half_look(p, from, HALF_LATER, stream) || !half_load(p, stream))
		return false;
	length = stream->length;
	barrier_var(length);
	if (!length)
		return false;
	barrier_var(length);
	if (length > RANGE_MOST)
		return false;
	half_done(stream);
	__builtin_memset(stream->bytes + length, 0, 16);
	range = head_range(ranges, ranges->count);
	range->from = from;
	range->end = from + length;
	range->hash = bytes_hash((const struct request_bytes *)stream->bytes, length, from, secret);
	ranges->count++;
	ranges->read = range->end;
	return true;
}

/* The end of the first head has not come yet. A verdict, or LATER_AGAIN. */
static __always_inline int tail_rule(struct front_context *front, struct connection *on, struct stream *stream)
{
	const struct packet *p = &front->packet;
	__u32 end = p->seq + p->payload_length, begin = on->tcp->rcv_nxt - (__u32)on->tcp->bytes_received;

	if (!on->ranges->count && !tail_note(p, stream, on->ranges, begin))
		return later_unread(front, on->label, stream, FIEF_UNREAD_NO_ROOM);
	if (!is_behind(on->ranges->read, on->tcp->rcv_nxt)) {
		__sync_fetch_and_and(&on->label->flags, ~FIEF_LABEL_TAIL);
		return LATER_AGAIN;
	}
	if (p->flags & TCP_FIN && is_behind(on->ranges->read, end))
		return later_unread(front, on->label, stream, FIEF_UNREAD_MALFORMED);
	return LATER_AGAIN;
}

/* What of the first head did not fit into the grown packet is kept, if there is such. False: it has no room, and is refused. */
static __noinline bool tail_keep(struct front_context *front, struct stream *stream)
{
	const struct packet *p = &front->packet;
	struct ruling *ruling = &stream->ruling;
	struct fief_admitted *entry = &stream->admitted;

	if (ruling->unread < FIEF_UNREADS || ruling->head <= p->payload_length)
		return true;
	if (tail_move(p, stream, ruling->head) && hold_keep(p, stream, 0, 0, 0)) {
		entry->tracked |= FIEF_LABEL_TAIL;
		return true;
	}
	unread_rule(front, ruling, FIEF_UNREAD_NO_ROOM);
	admitted_pass(front, entry);
	return !ruling->refused;
}
