/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Segment: makes the current packet into another TCP segment of its flow: an answer to its sender, or a segment in the sender's
 * name to the own socket.
 *
 * Problem: a program at the ingress has no buffers of its own.
 * How: new headers overwrite the old ones, from a scratch area of the CPU, and the packet is cut or grown to length. The
 * checksum is whole. Where the sender or GRO left it to be completed (CHECKSUM_PARTIAL) it is the pseudo header's: the offsets
 * are the same, since odd packets never come here.
 */
#pragma once

#include "context.bpf.h"
#include "flow/route.bpf.h"

#define SEGMENT_OPTIONS	   40
#define SEGMENT_PAYLOAD	   256
#define SEGMENT_UNROUTED   64 /* a verdict of no kernel's: the answer has no way, and the packet is as it was */
#define SEGMENT_UNASKED	   65 /* the same, of a neighbour that is not asked for */
#define TIME_TO_LIVE	   64
#define CHECKSUM_PARTIAL   3
#define IPV4_DONT_FRAGMENT 0x4000

/* TCP begins at a fixed place, whatever is before it. */
struct segment {
	__u8 network[40]; /* IPv4 uses the last 20, and what is before them for the link header */
	struct tcphdr tcp;
	__u8 rest[SEGMENT_OPTIONS + SEGMENT_PAYLOAD + 4]; /* options, then payload */
	__u32 options;					  /* bytes of each, options in words of 4 */
	__u32 payload;
	struct answer_way way;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct segment);
} segments SEC(".maps");

/* Begins a segment; the caller fills `rest` and its lengths, or leaves it empty. */
static __always_inline struct segment *segment_begin(__u32 seq, __u32 ack, __u16 window, __u8 flags)
{
	__u32 zero = 0;
	struct segment *s = bpf_map_lookup_elem(&segments, &zero);

	if (!s)
		return NULL;
	__builtin_memset(&s->tcp, 0, sizeof(s->tcp));
	s->tcp.seq = bpf_htonl(seq);
	s->tcp.ack_seq = bpf_htonl(ack);
	s->tcp.window = bpf_htons(window);
	((__u8 *)&s->tcp)[TCP_FLAGS_AT] = flags;
	s->options = 0;
	s->payload = 0;
	return s;
}

static __always_inline __u16 fold_sum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Of the addresses, which may be swapped, the protocol and the length of header and payload. */
static __always_inline __u64 pseudo_sum(const struct packet *p, __u32 length)
{
	__u64 sum = (__u64)bpf_htonl(length) + bpf_htonl(IPPROTO_TCP);
	const __u32 *source = (const __u32 *)p->source, *destination = (const __u32 *)p->destination;

	if (!p->ipv6)
		return sum + source[3] + destination[3];
	sum += (__u64)source[0] + source[1] + source[2] + source[3];
	return sum + destination[0] + destination[1] + destination[2] + destination[3];
}

static __always_inline bool checksum_partial(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(buffer, ip_summed) == CHECKSUM_PARTIAL;
}

/* `time` to live. */
static __always_inline void network_write(struct segment *s, const struct packet *p, __u32 length, bool back,
					  __u32 time)
{
	const __u8 *from = back ? p->destination : p->source;
	const __u8 *to = back ? p->source : p->destination;

	if (p->ipv6) {
		struct ipv6hdr *ip = (struct ipv6hdr *)s->network;

		*(__be32 *)ip = bpf_htonl(6u << 28);
		ip->payload_len = bpf_htons(length);
		ip->nexthdr = IPPROTO_TCP;
		ip->hop_limit = time;
		address_copy(&ip->saddr, from);
		address_copy(&ip->daddr, to);
	} else {
		__be32 *ip = (__be32 *)(s->network + 20); /* no options, no piece */
		__u32 source = ipv4_of(from), destination = ipv4_of(to);

		ip[0] = bpf_htonl(0x45000000 | (length + sizeof(struct iphdr)));
		ip[1] = bpf_htonl(IPV4_DONT_FRAGMENT);
		ip[2] = bpf_htonl(time << 24 | IPPROTO_TCP << 16);
		ip[2] |= (__u32)(__u16)~fold_sum((__u64)ip[0] + ip[1] + ip[2] + source + destination) << 16;
		ip[3] = source;
		ip[4] = destination;
	}
}

/* Swaps the addresses of a link header (Ethernet), which are three words each. */
static __always_inline void ends_swap(__u16 *ends)
{
	__u32 i;

	for (i = 0; i < 3; i++) {
		__u16 word = ends[i];

		ends[i] = ends[i + 3];
		ends[i + 3] = word;
	}
}

static __always_inline int ethernet_swap(struct __sk_buff *skb)
{
	__u16 ends[6];

	if (bpf_skb_load_bytes(skb, 0, ends, sizeof(ends)))
		return -1;
	ends_swap(ends);
	return bpf_skb_store_bytes(skb, 0, ends, sizeof(ends), 0);
}

#define LINK_AT (20 - sizeof(struct ethhdr)) /* in segment.network, before the header of IPv4 */

/*
 * Makes the packet as long as this. A SYN and its answer are equally long as a rule, and then nothing is to be done. Of a packet of several
 * segments (GSO) the kernel's call forgets that it is one.
 */
static __always_inline int length_set(struct __sk_buff *skb, __u32 length)
{
	return skb->len == length && !skb->gso_size ? 0 : bpf_skb_change_tail(skb, length, 0);
}

/*
 * Turns the packet into `s`: back to its sender, or on in its direction. 0, or -1: it is spoilt, drop it. A function of its own
 * to the verifier.
 */
__noinline int segment_put(struct __sk_buff *skb, const struct packet *p __arg_nonnull, struct segment *s __arg_nonnull,
			   bool back)
{
	__u32 start = p->ipv6 ? 0 : 20, at = p->network, options = s->options, payload = s->payload, length;
	bool partial = checksum_partial(skb);
	__u64 sum;

	if (options > SEGMENT_OPTIONS || payload > SEGMENT_PAYLOAD || p->big)
		return -1;
	length = sizeof(s->tcp) + options + payload;
	s->tcp.source = bpf_htons(back ? p->destination_port : p->source_port);
	s->tcp.dest = bpf_htons(back ? p->source_port : p->destination_port);
	s->tcp.doff = (sizeof(s->tcp) + options) / 4;
	network_write(s, p, length, back, TIME_TO_LIVE);
	/* the checksum counts words: what follows the last byte is zero */
	if (payload & 3)
		__builtin_memset(s->rest + options + payload, 0, 4);
	sum = pseudo_sum(p, length);
	if (partial)
		s->tcp.check = fold_sum(sum);
	else
		s->tcp.check = ~fold_sum(sum + bpf_csum_diff(NULL, 0, (__be32 *)&s->tcp, (length + 3) & ~3u, 0));
	if (length_set(skb, p->transport + length))
		return -1;
	if (back && at == sizeof(struct ethhdr) && !p->ipv6) {
		/* all headers are written at once; the sum of the link's does not change */
		if (bpf_skb_load_bytes(skb, 0, s->network + LINK_AT, sizeof(struct ethhdr)))
			return -1;
		ends_swap((__u16 *)(s->network + LINK_AT));
		start = LINK_AT;
		at = 0;
	} else if (back && at >= sizeof(struct ethhdr) && ethernet_swap(skb)) {
		return -1;
	}
	return bpf_skb_store_bytes(skb, at, s->network + start, 40 - start + length, BPF_F_RECOMPUTE_CSUM);
}

/* TCX_*, or SEGMENT_UNROUTED, or SEGMENT_UNASKED. */
static __noinline int segment_answer(struct __sk_buff *skb, const struct packet *p, struct segment *s)
{
	enum answer_leaves leaves = answer_route(skb, p, &s->way);

	if (leaves == LEAVES_NOWHERE)
		return SEGMENT_UNROUTED;
	if (leaves == LEAVES_UNASKED)
		return SEGMENT_UNASKED;
	if (segment_put(skb, p, s, true))
		return TCX_DROP;
	return leaves == LEAVES_BACK ? bpf_redirect(skb->ifindex, 0) : route_take(skb, p, &s->way);
}
