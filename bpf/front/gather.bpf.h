/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Gather: bytes before there is a socket are put into the stream, and acknowledged.
 *
 * How: bytes are taken in order; a segment out of order is dropped, and the acknowledgement repeated. The checksum of each
 * packet whose bytes are kept is checked before.
 */
#pragma once

#include "grow.bpf.h"
#include "halves.bpf.h"
#include "flow/options.bpf.h"

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

/* The window field that offers so many bytes, or a few more: an edge that was offered before must not move back. */
static __always_inline __u16 window_field(__u32 bytes, __u32 scale)
{
	scale &= 15;
	bytes = (bytes + (1u << scale) - 1) >> scale;
	return bytes < 0xffff ? bytes : 0xffff;
}

/* Of the windows that a server offers which agreed on this. */
static __always_inline __u32 receive_scale(const struct handshake *with)
{
	return with->scale == SCALE_NONE ? 0 : with->receive_scale;
}

static __always_inline int acknowledge(struct __sk_buff *skb, const struct packet *p, const struct handshake *with,
				       __u32 ack, __u16 window)
{
	struct segment *s = segment_begin(p->ack, ack, window, TCP_ACK);

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
	return acknowledge(skb, p, &stream->with, stream->first + 1 + length,
			   window_field(HOLD_WINDOW, receive_scale(&stream->with)));
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
