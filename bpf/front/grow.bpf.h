/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Grow: makes the current packet into a segment that bears the whole stream, from its first byte.
 *
 * Problem: kept bytes have to reach the server, and a program at the ingress has no buffers of its own.
 * How: the packet is grown, and the stream is written after its TCP header, whose options stay. The checksum of each packet
 * whose bytes are kept is checked before, since the grown segment has a checksum of ours.
 * Limits: the kernel lets a packet grow to just below 16 kB, GROWN_MOST bytes of stream.
 */
#pragma once

#include "cut.bpf.h"
#include "owed.bpf.h"

#define GROWN_MOST STREAM_PIECE /* the kernel takes frames of up to 16064 bytes */

/* Grows the packet to the stream. 0, or negative: it is spoilt. */
static __noinline int packet_grow(struct __sk_buff *skb, struct packet *p, struct stream *stream)
{
	__u32 length = stream->length, head;
	struct segment *s = segment_begin(0, 0, 0, 0);
	bool partial = checksum_partial(skb);
	__u32 end = p->seq + p->payload_length;
	__u64 sum;

	if (!s || p->big)
		return -1;
	head = header_load(skb, p, s);
	if (!head)
		return -1;
	if (length > GROWN_MOST)
		length = GROWN_MOST;
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
	owed_mark(skb);
	return 0;
}
