/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Route: what the kernel's routes say of a packet.
 *
 * Limits: where nothing is forwarded, the kernel drops what is not its own, and the lookup says so in other words.
 */
#pragma once

#include "flow/packet.bpf.h"

/* Addressed to this machine, and not through it. */
static __noinline bool route_is_local(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup route = {.ifindex = skb->ifindex, .l4_protocol = IPPROTO_TCP};
	long found;

	if (p->ipv6) {
		route.family = AF_INET6;
		__builtin_memcpy(route.ipv6_src, p->source, 16);
		__builtin_memcpy(route.ipv6_dst, p->destination, 16);
	} else {
		route.family = AF_INET;
		__builtin_memcpy(&route.ipv4_src, p->source + 12, 4);
		__builtin_memcpy(&route.ipv4_dst, p->destination + 12, 4);
	}
	found = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	return found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FWD_DISABLED;
}
