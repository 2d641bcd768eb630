/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Received: what a TCP packet says once the network layer has taken it, as cgroup hooks see it.
 *
 * Problem: the buffer begins at the network header, and TCP need not lie in its linear part.
 * How: the few bytes that are asked for are copied, each at its place; plainly where they lie in the linear part, as they do
 * unless somebody cut them there.
 * Limits: behind IPv6's extension headers ports and flags are not found; for such a packet they are 0 or wrong, so whoever
 * asks must be one that counts, and not one that decides.
 */
#pragma once

#include "flow/address.bpf.h"
#include "flow/tcp.bpf.h"

static __always_inline bool received_ipv4(struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IP);
}

/* Read at its place: the compiler would choose between the addresses of several fields, which the verifier refuses. */
#define buffer_word(skb, field)                                                                                        \
	({                                                                                                             \
		__u64 word;                                                                                            \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                                                  \
			     : "=r"(word)                                                                              \
			     : "r"(skb), "i"(__builtin_offsetof(struct __sk_buff, field)));                            \
		word;                                                                                                  \
	})

static __always_inline bool received_bytes(struct __sk_buff *skb, __u32 at, void *to, __u32 length)
{
	const __u8 *from = (const __u8 *)buffer_word(skb, data) + at;
	const __u8 *end = (const __u8 *)buffer_word(skb, data_end);

	if (from + length <= end) {
		__builtin_memcpy(to, from, length);
		return true;
	}
	return !bpf_skb_load_bytes(skb, at, to, length);
}

/* Where TCP begins. */
static __always_inline __u32 received_transport(struct __sk_buff *skb)
{
	__u8 first = 0;

	if (!received_ipv4(skb))
		return sizeof(struct ipv6hdr);
	received_bytes(skb, 0, &first, sizeof(first));
	return (first & 15) * 4;
}

/* The source or the destination; false: it cannot be read. */
static __always_inline bool received_address(struct __sk_buff *skb, bool source, __u8 *address)
{
	__u32 ipv4;

	if (!received_ipv4(skb))
		return received_bytes(skb, source ? 8 : 24, address, 16);
	if (!received_bytes(skb, source ? 12 : 16, &ipv4, sizeof(ipv4)))
		return false;
	mapped_ipv4(ipv4, address);
	return true;
}

static __always_inline void received_ports(struct __sk_buff *skb, __u16 *source, __u16 *destination)
{
	__be16 ports[2] = {};

	received_bytes(skb, received_transport(skb), ports, sizeof(ports));
	*source = bpf_ntohs(ports[0]);
	*destination = bpf_ntohs(ports[1]);
}

static __always_inline bool received_syn(struct __sk_buff *skb)
{
	__u8 flags = 0;

	received_bytes(skb, received_transport(skb) + TCP_FLAGS_AT, &flags, sizeof(flags));
	return (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}
