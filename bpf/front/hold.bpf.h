/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hold: the verdict on a request does not depend on how its header is cut into segments.
 *
 * Problem: a header can come in any number of segments, and a sender may wait for the acknowledgement of each (Nagle). The
 * kernel must keep no socket before the verdict.
 * How: most headers come whole; that case keeps nothing. Otherwise we keep the bytes in order (halves.bpf.h) and acknowledge
 * them (gather.bpf.h). New bytes are appended in place, and scanned for the end of the head (scan.bpf.h): a segment costs its
 * own bytes only, wherever it stands, behind a PROXY head too. Where there may be a verdict the whole head is copied. With the
 * verdict the current segment grows to the whole stream from its first byte (grow.bpf.h), and makes the connection as if it had
 * come so.
 * Limits: the last bytes of a header that is longer than a segment can grow are read, but neither acknowledged nor delivered
 * with it; the client sends them again, and no others pass in their place (tail.bpf.h). A displaced client is reset, and has
 * to connect again.
 */
#pragma once

#include "added.bpf.h"
#include "gather.bpf.h"
#include "halves.bpf.h"
#include "keep.bpf.h"
#include "tags.bpf.h"

/* Bytes of the connection have been acknowledged. */
__noinline int half_mark(const struct half_name *name __arg_nonnull)
{
	__u32 i, tag = name->tag, older, *place;

	if (half_tagged(name))
		return 0;
	for (i = 0; i < HALF_WAYS; i++) {
		place = half_way(name, i);
		if (!place)
			return 0;
		older = *place;
		*place = tag;
		if (!older)
			return 0;
		tag = older;
	}
	return 0;
}

/* Acknowledges what is kept of the stream. */
static __always_inline int kept_acknowledge(struct __sk_buff *skb, const struct packet *p, struct stream *stream)
{
	if (stream->length)
		half_mark(&stream->half);
	return hold_acknowledge(skb, p, stream);
}

/*
 * Puts what is new of a gathered packet behind what is kept. What came first counts: nobody replaces what was
 * acknowledged. A verdict, STREAM_ENDS: the whole is in the stream, or STREAM_REFUSED.
 */
static __noinline int stream_join(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	const struct packet *p = &front->packet;
	__u32 known = stream->known, skip = stream->first + 1 + known - p->seq, length = stream->length;

	switch (half_add(p, stream, known, skip, p->flags & TCP_FIN)) {
	case HALF_KEPT:
		stream->length = known + length - skip;
		return kept_acknowledge(skb, p, stream);
	case HALF_READY:
		break;
	case HALF_REFUSED:
		return STREAM_REFUSED;
	default:
		return TCX_DROP;
	}
	stream->length = known;
	if (!half_load(p, stream) || stream_append(skb, p, stream, skip) < 0)
		return TCX_DROP;
	return STREAM_ENDS;
}
