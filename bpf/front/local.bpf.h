/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Local: whether a packet is for this machine at all, which refuses a torn one.
 *
 * Problem: a port of the policy can also be that of a forwarded connection, and a listener on every address takes none of
 * those.
 * How: the socket's own address, or the kernel's routes where it names none.
 * Limits: a machine that does not forward drops packets for other machines, so there no route is looked up. The door cannot see
 * a translation of addresses that comes after it: where such rules are, the kernel has to answer SYNs (FIEF_GUARD_KERNEL).
 */
#pragma once

#include "flow/route.bpf.h"
#include "forward.bpf.h"
#include "guard.bpf.h"

static __always_inline bool bound_to(struct tcp_sock *listening, const struct packet *p)
{
	struct sock_common *sk = &listening->inet_conn.icsk_inet.sk.__sk_common;
	const __u32 *words = (const __u32 *)p->destination;

	if (!p->ipv6)
		return sk->skc_rcv_saddr == words[3];
	return sk->skc_v6_rcv_saddr.in6_u.u6_addr32[0] == words[0] &&
	       sk->skc_v6_rcv_saddr.in6_u.u6_addr32[1] == words[1] &&
	       sk->skc_v6_rcv_saddr.in6_u.u6_addr32[2] == words[2] &&
	       sk->skc_v6_rcv_saddr.in6_u.u6_addr32[3] == words[3];
}

static __always_inline bool is_local(struct __sk_buff *skb, struct tcp_sock *listening, const struct packet *p)
{
	return bound_to(listening, p) || route_is_local(skb, p);
}

/*
 * It may be a SYN or a segment. A connection that passes through to others is policed by its SYN, and no honest sender parts
 * a SYN from its flags.
 */
static __always_inline int torn_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening)
{
	return is_forward(front) || is_local(skb, listening, &front->packet) ? shape_rule(front) : TCX_NEXT;
}
