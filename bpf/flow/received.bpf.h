/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Received: what a TCP packet says once the network layer has taken it, as cgroup hooks see it.
 *
 * Problem: the buffer begins at the network header, and TCP need not lie in its linear part.
 * How: the few bytes that are asked for are copied, each at its place.
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

/* Where TCP begins. */
static __always_inline __u32 received_transport(struct __sk_buff *skb)
{
	__u8 first = 0;

	if (!received_ipv4(skb))
		return sizeof(struct ipv6hdr);
	bpf_skb_load_bytes(skb, 0, &first, sizeof(first));
	return (first & 15) * 4;
}

/* The source or the destination; false: it cannot be read. */
static __always_inline bool received_address(struct __sk_buff *skb, bool source, __u8 *address)
{
	__u32 ipv4;

	if (!received_ipv4(skb))
		return !bpf_skb_load_bytes(skb, source ? 8 : 24, address, 16);
	if (bpf_skb_load_bytes(skb, source ? 12 : 16, &ipv4, sizeof(ipv4)))
		return false;
	mapped_ipv4(ipv4, address);
	return true;
}

static __always_inline void received_ports(struct __sk_buff *skb, __u16 *source, __u16 *destination)
{
	__be16 ports[2] = {};

	bpf_skb_load_bytes(skb, received_transport(skb), ports, sizeof(ports));
	*source = bpf_ntohs(ports[0]);
	*destination = bpf_ntohs(ports[1]);
}

static __always_inline bool received_syn(struct __sk_buff *skb)
{
	__u8 flags = 0;

	bpf_skb_load_bytes(skb, received_transport(skb) + TCP_FLAGS_AT, &flags, sizeof(flags));
	return (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}
