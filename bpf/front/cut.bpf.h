/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Cut: the current packet goes on with the first of its bytes only.
 *
 * Problem: bytes that cannot be ruled yet must not reach the socket, and those before them, or the acknowledgement, must.
 * How: the packet is cut, and its header rewritten. The checksum, which is ours then, has to be right before: so it is checked.
 */
#pragma once

#include "segment.bpf.h"
#include "stream.bpf.h"

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

/* Whether nobody needs to add it up. */
static __always_inline bool checksum_known(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	__u32 summed = BPF_CORE_READ_BITFIELD(buffer, ip_summed);

	return summed == CHECKSUM_PARTIAL || summed == CHECKSUM_UNNECESSARY;
}

/* Of a packet whose whole payload stands in the stream from `from` on. */
static __noinline bool checksum_valid(struct __sk_buff *skb, const struct packet *p, struct stream *stream, __u32 from)
{
	struct segment *s;
	__u32 length;
	__u64 sum;

	if (checksum_known(skb))
		return true;
	if (stream->length - from < p->payload_length)
		return false;
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

/* Lets `length` of the packet's bytes pass, the first of them at p->seq. Its checksum, which is ours then, has to be right before. */
__noinline int packet_cut(struct __sk_buff *skb, struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull,
			  __u32 length)
{
	struct segment *s;
	__u32 head;
	__u64 sum;

	stream_begin(stream, p->seq);
	if (length > p->payload_length || stream_append(skb, p, stream, 0) < 0 || !checksum_valid(skb, p, stream, 0))
		return TCX_DROP;
	s = segment_begin(0, 0, 0, 0);
	if (!s)
		return TCX_DROP;
	head = header_load(skb, p, s);
	if (!head)
		return TCX_DROP;
	s->tcp.fin = 0;
	s->tcp.seq = bpf_htonl(p->seq);
	s->tcp.check = 0;
	sum = pseudo_sum(p, head + length);
	if (checksum_partial(skb)) {
		s->tcp.check = fold_sum(sum);
	} else {
		if (length > stream->length)
			return TCX_DROP;
		sum += (__u32)bpf_csum_diff(NULL, 0, (__be32 *)&s->tcp, head & ~3u, 0);
		sum += (__u32)stream_sum(stream, 0, length);
		s->tcp.check = ~fold_sum(sum);
	}
	if (bpf_skb_change_tail(skb, p->payload + length, 0) || length_write(skb, p, head + length))
		return TCX_DROP;
	if (bpf_skb_store_bytes(skb, p->transport, &s->tcp, head, BPF_F_RECOMPUTE_CSUM))
		return TCX_DROP;
	p->payload_length = length;
	return TCX_NEXT;
}

/* What cannot be ruled comes again: the packet goes on without its bytes. A guard that watches holds nothing up. */
static __always_inline int packet_strip(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : packet_cut(skb, &front->packet, stream, 0);
}
