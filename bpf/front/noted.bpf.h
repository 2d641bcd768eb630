/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Noted: what passes of a head is noted, as far as there is room (heads.bpf.h). */
#pragma once

#include "repeated.bpf.h"

/* Whether what the packet may add to one head, of which it is known as far as `from`, has room. */
static __always_inline bool heads_room(const struct packet *p, const struct head_ranges *ranges, __u32 from)
{
	__u32 end = p->seq + p->payload_length, used = ranges->count - ranges->first, needed;

	if (!is_behind(end, from))
		return true;
	needed = 1 + (end - from) / RANGE_MOST;
	if (needed > HEAD_RANGES)
		needed = HEAD_RANGES;
	return used + needed <= RANGES;
}

/*
 * Where what is noted begins, if it goes on behind `from`: many small heads that stand one behind the other in the packet share
 * ranges.
 */
static __always_inline __u32 heads_join(const struct packet *p, struct head_ranges *ranges, __u32 from)
{
	struct head_range *last = head_range(ranges, ranges->count - 1);

	if (ranges->count - ranges->first < HEADS_APART || last->end != from || is_behind(p->seq, last->from) ||
	    from - last->from >= RANGE_MOST)
		return from;
	ranges->count--;
	return last->from;
}

/* Notes what passes of a head with this packet: [from, stream->read), for which there is room. */
__noinline int heads_note(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			  struct stream *stream __arg_nonnull, struct head_ranges *ranges __arg_nonnull, __u32 from)
{
	struct head_range *range;
	__u32 length, i;

	from = heads_join(p, ranges, from);
	for (i = loop_from(0); i < RANGES && can_loop; i++) {
		length = stream->read - from;
		if (!length || ranges->count - ranges->first >= RANGES)
			break;
		if (length > RANGE_MOST)
			length = RANGE_MOST;
		range = head_range(ranges, ranges->count);
		range->from = from;
		range->end = from + length;
		range->hash = range_hash(skb, p, stream, from, length);
		from += length;
		ranges->count++;
	}
	return 0;
}
