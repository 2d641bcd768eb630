/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Listening: which socket a packet is for, and whether it is for this machine at all.
 *
 * Problem: a port of the policy can also be that of a forwarded connection, and a listener on every address takes none of
 * those.
 * How: the kernel's own lookups: of sockets, and of routes where the socket does not name the very address.
 * Limits: a machine that does not forward drops packets for other machines, so there no route is looked up. The door cannot see
 * a translation of addresses that comes after it: where such rules are, the kernel has to answer SYNs (FIEF_GUARD_KERNEL).
 */
#pragma once

#include "context.bpf.h"
#include "flow/key.bpf.h"
#include "flow/multipath.bpf.h"
#include "flow/route.bpf.h"
#include "steering.bpf.h"

/* By the kernel's lookup, within which the door is known to look. As socket_find(). */
static __always_inline struct bpf_sock *tuple_find(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, bool ipv6,
						   const struct listener_found *listener)
{
	struct steering *steering = steering_begin(listener);
	struct bpf_sock *sk;

	if (ipv6)
		sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
	steering_end(steering);
	return sk;
}

/*
 * The socket of the flow in whatever state, else the listening one, which the caller releases. `listener`: the policy's, which
 * then need not be looked for again, or NULL.
 */
static __noinline struct bpf_sock *socket_find(struct __sk_buff *skb, const struct packet *p,
					       const struct listener_found *listener)
{
	struct bpf_sock_tuple tuple;

	flow_tuple(p, &tuple);
	return tuple_find(skb, &tuple, p->ipv6, listener);
}

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

/* A socket of one family only takes no connection of the other. */
static __always_inline bool takes_family(struct tcp_sock *listening, const struct packet *p)
{
	struct sock_common *sk = &listening->inet_conn.icsk_inet.sk.__sk_common;

	if (sk->skc_family == AF_INET)
		return !p->ipv6;
	return p->ipv6 || !BPF_CORE_READ_BITFIELD(sk, skc_ipv6only);
}

/* As the kernel's sk_acceptq_is_full(). */
static __always_inline bool queue_full(struct tcp_sock *listening)
{
	struct sock *sk = &listening->inet_conn.icsk_inet.sk;

	return sk->sk_ack_backlog > sk->sk_max_ack_backlog;
}
