/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Arrival: addresses and ports of a TCP segment at the link layer.
 *
 * Problem: every packet of the machine passes here, and nearly none is for a lane.
 * How: one look at the header in place; addresses as the tables have them, IPv4 mapped.
 * Limits: whatever is unusual (not for this host's link address, tagged, fragments, extension headers, link-local
 * addresses, which belong to their interface) is not ours: the network layer receives it as ever.
 */
#pragma once

#include "classify.bpf.h"

#define FRAGMENT_MASK bpf_htons(0x3fff)

struct arrival {
	__u8 source[16];
	__u8 destination[16];
	struct bpf_sock_tuple tuple;
	bool ipv4;
	__u16 destination_port; /* host order */
	__u16 payload;		/* offset in the frame */
};

static __always_inline bool is_link_local(const struct in6_addr *address)
{
	return address->in6_u.u6_addr8[0] == 0xff ||
	       (address->in6_u.u6_addr16[0] & bpf_htons(0xffc0)) == bpf_htons(0xfe80);
}

static __always_inline bool arrival_read(struct __sk_buff *skb, struct arrival *a)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *link = data;
	struct tcphdr *tcp;

	if (skb->pkt_type != PACKET_HOST || skb->vlan_present || (void *)(link + 1) > end)
		return false;
	if (link->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(link + 1);

		if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->frag_off & FRAGMENT_MASK)
			return false;
		tcp = (void *)ip + ip->ihl * 4;
		if (ip->ihl < 5 || (void *)(tcp + 1) > end)
			return false;
		mapped_ipv4(ip->saddr, a->source);
		mapped_ipv4(ip->daddr, a->destination);
		a->tuple.ipv4.saddr = ip->saddr;
		a->tuple.ipv4.daddr = ip->daddr;
		a->tuple.ipv4.sport = tcp->source;
		a->tuple.ipv4.dport = tcp->dest;
		a->ipv4 = true;
	} else if (link->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6 = (void *)(link + 1);

		if ((void *)(ip6 + 1) > end || ip6->nexthdr != IPPROTO_TCP)
			return false;
		if (is_link_local(&ip6->saddr) || is_link_local(&ip6->daddr))
			return false;
		tcp = (void *)(ip6 + 1);
		if ((void *)(tcp + 1) > end)
			return false;
		__builtin_memcpy(a->source, &ip6->saddr, 16);
		__builtin_memcpy(a->destination, &ip6->daddr, 16);
		__builtin_memcpy(a->tuple.ipv6.saddr, a->source, 16);
		__builtin_memcpy(a->tuple.ipv6.daddr, a->destination, 16);
		a->tuple.ipv6.sport = tcp->source;
		a->tuple.ipv6.dport = tcp->dest;
		a->ipv4 = false;
	} else {
		return false;
	}
	a->destination_port = bpf_ntohs(tcp->dest);
	a->payload = (void *)tcp - data + tcp->doff * 4;
	return true;
}
