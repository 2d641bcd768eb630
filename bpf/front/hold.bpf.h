/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hold: the verdict upon a request does not depend on how its header is cut into segments.
 *
 * Problem: a header can come in any number of segments, and a sender may wait for the acknowledgement of each (Nagle).
 * The kernel shall keep no socket before the verdict.
 * How: most headers come whole; that case keeps nothing. Else the bytes are kept in order (`pending`) and acknowledged by
 * us; what is out of order is dropped, and the acknowledgement repeated. With the verdict the segment at hand is grown to
 * the whole stream from its first byte (grow.bpf.h), and makes the connection as if it had come so.
 * Limits: the last bytes of a header that is longer than what a segment can grow to are looked at, but neither
 * acknowledged nor delivered with it; the client sends them again. Who sends half a header and waits is forgotten when
 * the map is full, and then has to connect again.
 */
#pragma once

#include "grow.bpf.h"
#include "options.bpf.h"
#include "maps/pending.bpf.h"

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

/* Takes over what is kept of the flow; false: nothing of this connection. */
static __noinline bool hold_find(const struct packet *p, struct stream *stream)
{
	struct fief_flow_key key;
	struct fief_pending *kept;
	__u32 length;

	flow_key(p, &key);
	kept = bpf_map_lookup_elem(&pending, &key);
	if (!kept || kept->cookie != p->ack - 1)
		return false;
	length = kept->length;
	if (length > FIEF_HEADER_MAX)
		return false;
	stream->first = kept->first;
	stream->cookie = kept->cookie;
	stream->doubted = kept->doubted;
	stream->length = length;
	return !length || !bpf_probe_read_kernel(stream->bytes, length, kept->bytes);
}

enum hold {
	HOLD_KNOWN,	/* nothing new: acknowledge it again */
	HOLD_SPOILT,	/* a wrong checksum, or not readable */
	HOLD_FOLLOWING, /* the stream is as long as it can be from here */
};

/* Puts the packet's bytes behind those that are kept. */
static __noinline enum hold hold_gather(struct __sk_buff *skb, const struct packet *p, struct stream *stream)
{
	__u32 at = p->seq - (stream->first + 1), known = stream->length;
	int count;

	if (at > known)
		return HOLD_KNOWN; /* out of order, or of before */
	if (at + p->payload_length <= known && !(p->flags & TCP_FIN))
		return HOLD_KNOWN;
	stream->length = at;
	count = stream_append(skb, p, stream, 0);
	if (count < 0)
		return HOLD_SPOILT;
	if (count == p->payload_length && count && !checksum_valid(skb, p, stream, at))
		return HOLD_SPOILT;
	return HOLD_FOLLOWING;
}

static __noinline bool hold_keep(const struct packet *p, struct stream *stream)
{
	struct fief_flow_key key;

	flow_key(p, &key);
	return !bpf_map_update_elem(&pending, &key, stream, BPF_ANY);
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
