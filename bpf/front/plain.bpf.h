/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Plain: a connection request that the kernel answers asks for a plain TCP connection.
 *
 * Problem: the door rules one stream of bytes, from its first byte on. With multipath TCP the pieces of one request may come
 * over several connections, in an order that only the server's kernel knows. With TCP Fast Open bytes reach the server with the
 * request for the connection, or after it on a socket that is there before the handshake ends.
 * How: in requests that go on to the kernel these options (30, 34, and 254 as Fast Open's experiment used it) become padding,
 * and the bytes are cut off. The kernel then answers as one that knows neither. The client goes on with plain TCP, as both
 * standards say (RFC 8684 3.7, RFC 7413 4.2), and sends its bytes again.
 * Limits: connections of several paths that are older than the policy stay so.
 */
#pragma once

#include "hold.bpf.h"

#define OPTION_MULTIPATH   30
#define OPTION_FAST_OPEN   34
#define OPTION_EXPERIMENT  254
#define EXPERIMENT_OF_OPEN 0xf989

/* Of options_pad(). */
#define PADDED_MULTIPATH 1
#define PADDED_OPEN	 2

/* Pads the options that ask for more. Which there were, of PADDED_*. */
__noinline int options_pad(struct option_bytes *bytes, __u32 length)
{
	__u32 at = loop_from(0), found = loop_from(0);
	struct option option;
	int i, j, is;

	if (!bytes || length > OPTIONS_MOST)
		return 0;
	bpf_for (i, 0, OPTIONS_MOST) {
		option = option_at(bytes, at, length);
		if (option.kind == OPTION_END)
			break;
		is = 0;
		if (option.kind == OPTION_MULTIPATH)
			is = PADDED_MULTIPATH;
		else if (option.kind == OPTION_FAST_OPEN || (option.kind == OPTION_EXPERIMENT && option.size >= 4 &&
							     (option_word(bytes, at) & 0xffff) == EXPERIMENT_OF_OPEN))
			is = PADDED_OPEN;
		if (is) {
			bpf_for (j, 0, OPTIONS_MOST) {
				if (j >= option.size)
					break;
				bytes->at[(at + j) & 63] = OPTION_NOP;
			}
			found |= is;
		}
		at += option.size;
	}
	return found;
}

/* Writes the packet's header anew, with these options and without bytes behind it. 0, or negative: it is spoilt. */
static __always_inline int plain_write(struct __sk_buff *skb, const struct packet *p, const struct option_bytes *bytes)
{
	struct segment *s = segment_begin(0, 0, 0, 0);
	bool partial = checksum_partial(skb);
	__u32 head;
	__u64 sum;

	if (!s)
		return -1;
	head = header_load(skb, p, s);
	if (!head)
		return -1;
	__builtin_memcpy(s->rest, bytes->at, SEGMENT_OPTIONS);
	s->tcp.check = 0;
	sum = pseudo_sum(p, head);
	if (partial)
		s->tcp.check = fold_sum(sum);
	else
		s->tcp.check = ~fold_sum(sum + bpf_csum_diff(NULL, 0, (__be32 *)&s->tcp, head & ~3u, 0));
	if (bpf_skb_change_tail(skb, p->payload, 0) || length_write(skb, p, head))
		return -1;
	return bpf_skb_store_bytes(skb, p->transport, &s->tcp, head, BPF_F_RECOMPUTE_CSUM);
}

/* A SYN on its way to the kernel. The checksum becomes ours, so it has to be right before. */
static __noinline int syn_pass(struct __sk_buff *skb, const struct front_context *front)
{
	const struct packet *p = &front->packet;
	__u32 length = p->payload - p->transport - sizeof(struct tcphdr);
	struct option_bytes bytes = {};
	struct stream *stream;

	if ((front->guard->flags & (FIEF_GUARD_ADMIT | FIEF_GUARD_MONITOR)) != FIEF_GUARD_ADMIT)
		return TCX_NEXT;
	if (length > OPTIONS_MOST)
		return TCX_DROP;
	if (length && bpf_skb_load_bytes(skb, p->transport + sizeof(struct tcphdr), bytes.at, length))
		return TCX_DROP;
	if (!options_pad(&bytes, length) && !p->payload_length)
		return TCX_NEXT;
	stream = stream_get();
	if (!stream)
		return TCX_DROP;
	stream_begin(stream, p->seq);
	if (stream_append(skb, p, stream, 0) != p->payload_length || !checksum_valid(skb, p, stream, 0))
		return TCX_DROP;
	return plain_write(skb, p, &bytes) ? TCX_DROP : TCX_NEXT;
}
