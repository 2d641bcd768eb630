/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hold: the verdict upon a request does not depend on how its header is cut into segments.
 *
 * Problem: a header can come in any number of segments, and a sender may wait for the acknowledgement of each (Nagle).
 * The kernel shall keep no socket before the verdict.
 * How: most headers come whole; that case keeps nothing. Else the bytes are kept in order (`pending`) and acknowledged by
 * us; what is out of order is dropped, and the acknowledgement repeated. With the verdict the segment at hand is grown to
 * the whole stream from its first byte, and makes the connection as if it had come so. The checksum of what is kept is
 * looked at before, since that of the grown segment is ours.
 * Limits: the kernel lets a packet grow to just below 16 kB: the last bytes of a longer header are looked at, but neither
 * acknowledged nor delivered with it; the client sends them again. Who sends half a header and waits is forgotten when
 * the map is full, and then has to connect again.
 */
#pragma once

#include "options.bpf.h"
#include "stream.bpf.h"
#include "maps/pending.bpf.h"

#define HOLD_MOST   STREAM_PIECE /* bytes of a grown segment: the kernel takes frames of up to 16064 */
#define HOLD_WINDOW 64240

static __always_inline void flow_key(const struct packet *p, struct fief_flow_key *key)
{
	__builtin_memcpy(key->remote, p->source, 16);
	__builtin_memcpy(key->local, p->destination, 16);
	key->remote_port = p->source_port;
	key->local_port = p->destination_port;
	key->pad = 0;
}

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

	if (length > HOLD_MOST)
		length = HOLD_MOST;
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

/* The TCP header with its options, into the scratch segment. Its length; 0: it cannot be read. */
static __always_inline __u32 header_load(struct __sk_buff *skb, const struct packet *p, struct segment *s)
{
	__u32 length = p->payload - p->transport;

	if (length < sizeof(s->tcp) || length > sizeof(s->tcp) + SEGMENT_OPTIONS)
		return 0;
	if (bpf_skb_load_bytes(skb, p->transport, &s->tcp, length))
		return 0;
	return length;
}

/* Of a packet whose whole payload stands in the stream from `from` on. */
static __noinline bool checksum_valid(struct __sk_buff *skb, const struct packet *p, struct stream *stream, __u32 from)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	__u32 summed = BPF_CORE_READ_BITFIELD(buffer, ip_summed), length;
	struct segment *s;
	__u64 sum;

	if (summed == CHECKSUM_PARTIAL || summed == CHECKSUM_UNNECESSARY)
		return true;
	s = segment_begin(0, 0, 0, 0);
	if (!s)
		return false;
	length = header_load(skb, p, s);
	if (!length)
		return false;
	sum = pseudo_sum(p, length + p->payload_length);
	sum += (__u32)bpf_csum_diff(NULL, 0, (__be32 *)&s->tcp, length & ~3u, 0);
	sum += (__u32)stream_sum(stream, from, p->payload_length);
	return fold_sum(sum) == 0xffff;
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

static __always_inline int length_write(struct __sk_buff *skb, const struct packet *p, __u32 tcp_length)
{
	__be16 old, new;

	if (p->ipv6) {
		new = bpf_htons(tcp_length);
		return bpf_skb_store_bytes(skb, p->network + 4, &new, sizeof(new), BPF_F_RECOMPUTE_CSUM);
	}
	new = bpf_htons(tcp_length + sizeof(struct iphdr));
	if (bpf_skb_load_bytes(skb, p->network + 2, &old, sizeof(old)))
		return -1;
	if (bpf_l3_csum_replace(skb, p->network + 10, old, new, sizeof(new)))
		return -1;
	return bpf_skb_store_bytes(skb, p->network + 2, &new, sizeof(new), 0);
}

/* Grows the packet to the stream, from its first byte. 0, or negative: it is spoilt. */
static __noinline int hold_release(struct __sk_buff *skb, struct packet *p, struct stream *stream)
{
	__u32 length = stream->length, head;
	struct segment *s = segment_begin(0, 0, 0, 0);
	bool partial = checksum_partial(skb);
	__u32 end = p->seq + p->payload_length;
	__u64 sum;

	if (!s)
		return -1;
	head = header_load(skb, p, s);
	if (!head)
		return -1;
	if (length > HOLD_MOST)
		length = HOLD_MOST;
	s->tcp.seq = bpf_htonl(stream->first + 1);
	s->tcp.psh = 1;
	if (stream->first + 1 + length != end)
		s->tcp.fin = 0; /* the client sends the rest again */
	s->tcp.check = 0;
	sum = pseudo_sum(p, head + length);
	if (partial) {
		s->tcp.check = fold_sum(sum);
	} else {
		sum += (__u32)bpf_csum_diff(NULL, 0, (__be32 *)&s->tcp, head & ~3u, 0);
		sum += (__u32)stream_sum(stream, 0, length);
		s->tcp.check = ~fold_sum(sum);
	}
	if (bpf_skb_change_tail(skb, p->payload + length, 0) || length_write(skb, p, head + length))
		return -1;
	if (bpf_skb_store_bytes(skb, p->transport, &s->tcp, head, BPF_F_RECOMPUTE_CSUM))
		return -1;
	if (length && bpf_skb_store_bytes(skb, p->payload, stream->bytes, length, BPF_F_RECOMPUTE_CSUM))
		return -1;
	p->seq = stream->first + 1;
	p->payload_length = length;
	return 0;
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
