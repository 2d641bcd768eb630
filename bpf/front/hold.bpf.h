/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hold: the verdict on a request does not depend on how its header is cut into segments.
 *
 * Problem: a header can come in any number of segments, and a sender may wait for the acknowledgement of each (Nagle). The
 * kernel must keep no socket before the verdict.
 * How: most headers come whole; that case keeps nothing. Otherwise we keep the bytes in order (halves.bpf.h) and acknowledge
 * them; a segment out of order is dropped, and the acknowledgement repeated. New bytes are appended in place, and scanned for
 * the end of the head (scan.bpf.h): a segment costs its own bytes only, wherever it stands. Where there may be a verdict the
 * whole head is copied. With the verdict the current segment grows to the whole stream from its first byte (grow.bpf.h), and
 * makes the connection as if it had come so.
 * Limits: the last bytes of a header that is longer than a segment can grow are read, but neither acknowledged nor delivered
 * with it; the client sends them again. A displaced client is reset, and has to connect again. After a PROXY head each segment
 * costs what the whole head does.
 */
#pragma once

#include "grow.bpf.h"
#include "halves.bpf.h"
#include "options.bpf.h"

#define HOLD_WINDOW 64240

/* Our clock as the client saw it last does: it must not go back, that is all. */
static __always_inline void timestamps_option(struct segment *s, const struct handshake *with)
{
	if (!with->timestamps)
		return;
	*(__be32 *)s->rest = bpf_htonl(OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_TIMESTAMPS << 8 | 10);
	*(__be32 *)(s->rest + 4) = bpf_htonl(with->echo);
	*(__be32 *)(s->rest + 8) = bpf_htonl(with->timestamp);
	s->options = 12;
}

static __always_inline int acknowledge(struct __sk_buff *skb, const struct packet *p, const struct handshake *with,
				       __u32 ack)
{
	struct segment *s = segment_begin(p->ack, ack, HOLD_WINDOW, TCP_ACK);

	if (!s)
		return TCX_DROP;
	timestamps_option(s, with);
	return segment_answer(skb, p, s);
}

static __always_inline int hold_acknowledge(struct __sk_buff *skb, const struct packet *p, struct stream *stream)
{
	__u32 length = stream->length;

	if (length > GROWN_MOST)
		length = GROWN_MOST;
	return acknowledge(skb, p, &stream->with, stream->first + 1 + length);
}

/* Takes over what is known of the connection's begin; false: nothing is kept of it. */
static __always_inline bool hold_find(const struct packet *p, struct stream *stream)
{
	return half_look(p, p->ack - 1, p->ack - 1, stream);
}

enum hold {
	HOLD_KNOWN,	/* nothing new: acknowledge it again */
	HOLD_SPOILT,	/* a wrong checksum, or not readable */
	HOLD_FOLLOWING, /* the stream goes on with it */
};

/* Puts the packet's bytes into the stream: all of them, also those that are known already. */
static __noinline enum hold hold_gather(struct __sk_buff *skb, const struct packet *p, struct stream *stream)
{
	__u32 at = p->seq - (stream->first + 1), known = stream->length, end = at + p->payload_length;
	int count;

	if (at > known)
		return HOLD_KNOWN; /* out of order, or of before */
	if (end <= known && !(p->flags & TCP_FIN && end == known))
		return HOLD_KNOWN;
	stream->length = 0;
	stream->known = known;
	count = stream_append(skb, p, stream, 0);
	if (count < 0)
		return HOLD_SPOILT;
	if (count == p->payload_length && count && !checksum_valid(skb, p, stream, 0))
		return HOLD_SPOILT;
	return HOLD_FOLLOWING;
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
 * acknowledged. A verdict, or STREAM_ENDS: the whole is in the stream.
 */
static __noinline int stream_join(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	const struct packet *p = &front->packet;
	__u32 known = stream->known, skip = stream->first + 1 + known - p->seq, length = stream->length;
	__u32 how = p->flags & TCP_FIN ? HALF_ENDED : 0;

	if (front->guard->proxies)
		how |= HALF_PROXIES;
	switch (half_add(p, stream, known, skip, how)) {
	case HALF_KEPT:
		stream->length = known + length - skip;
		return kept_acknowledge(skb, p, stream);
	case HALF_READY:
		break;
	default:
		return TCX_DROP;
	}
	stream->length = known;
	if (!half_load(p, stream) || stream_append(skb, p, stream, skip) < 0)
		return TCX_DROP;
	return STREAM_ENDS;
}

/* Bytes, or a FIN, whose place in a stream is known. A verdict, or STREAM_ENDS. */
static __always_inline int bytes_gather(struct __sk_buff *skb, const struct packet *p, struct stream *stream)
{
	switch (hold_gather(skb, p, stream)) {
	case HOLD_KNOWN:
		return hold_acknowledge(skb, p, stream);
	case HOLD_SPOILT:
		return TCX_DROP;
	default:
		return STREAM_ENDS;
	}
}
