/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Repeated: what comes again on a connection is held against the heads that were ruled (heads.bpf.h). */
#pragma once

#include "cut.bpf.h"
#include "heads.bpf.h"
#include "verdict.bpf.h"

/* Hash of the packet's bytes [from, from + length); 0: they cannot be read. */
static __noinline __u64 range_hash(struct __sk_buff *skb, const struct packet *p, struct stream *stream, __u32 from,
				   __u32 length)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);

	barrier_var(length);
	if (!secret || !length)
		return 0;
	barrier_var(length); /* as in stream_append */
	if (length > RANGE_MOST)
		return 0;
	if (bpf_skb_load_bytes(skb, p->payload + (from - p->seq), stream->bytes, length))
		return 0;
	__builtin_memset(stream->bytes + length, 0, 16);
	return bytes_hash((const struct request_bytes *)stream->bytes, length, from, secret);
}

enum heads {
	HEADS_SAME,  /* it repeats what was ruled, or touches none of it */
	HEADS_OTHER, /* it would replace it */
	HEADS_PART,  /* it ends within a range: stream->read is where that begins */
	HEADS_WITHIN /* it begins within one */
};

/* Holds the packet against what was ruled and may not be taken. */
__noinline int heads_compare(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			     struct stream *stream __arg_nonnull, struct head_ranges *ranges __arg_nonnull)
{
	__u32 end = p->seq + p->payload_length;
	struct head_range *range;
	int i;

	bpf_for (i, 0, RANGES) {
		if (ranges->count - ranges->first <= i)
			break;
		range = head_range(ranges, ranges->first + i);
		if (!is_behind(range->end, p->seq))
			continue;
		if (!is_behind(end, range->from))
			break;
		if (is_behind(p->seq, range->from))
			return HEADS_WITHIN;
		if (is_behind(range->end, end)) {
			stream->read = range->from;
			return HEADS_PART;
		}
		if (range_hash(skb, p, stream, range->from, range->end - range->from) != range->hash)
			return HEADS_OTHER;
	}
	return HEADS_SAME;
}

/* Lets the packet pass as far as stream->read, where that lies within it. */
static __always_inline int heads_cut(struct __sk_buff *skb, struct packet *p, struct stream *stream)
{
	return is_behind(stream->read, p->seq) ? packet_cut(skb, p, stream, stream->read - p->seq) : TCX_DROP;
}

/*
 * Holds what comes again against what was ruled. A verdict, or LATER_AGAIN: the packet may pass, as far as this goes.
 */
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
