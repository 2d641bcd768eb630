/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Listening: which socket a packet is for, and what it can take.
 *
 * How: the kernel's own lookup, whatever state the socket is in; local.bpf.h has the lookup of routes.
 */
#pragma once

#include "context.bpf.h"
#include "flow/key.bpf.h"
#include "flow/multipath.bpf.h"
#include "steering.bpf.h"

/* By the kernel's lookup, within which the door is known to look. As socket_find(). */
static __always_inline struct bpf_sock *tuple_find(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, bool ipv6,
						   const struct policy_listener *listener)
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
					       const struct policy_listener *listener)
{
	struct bpf_sock_tuple tuple;

	flow_tuple(p, &tuple);
	return tuple_find(skb, &tuple, p->ipv6, listener);
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

#define ACCEPT_MARGIN 16

/*
 * Whether the accept queue has room for one more and for those that are on their way there, by other CPUs or in the same batch.
 * TCP drops what finds it full, and a client whose bytes were acknowledged does not send them again.
 */
static __always_inline bool queue_has_room(struct tcp_sock *listening)
{
	struct sock *sk = &listening->inet_conn.icsk_inet.sk;
	__u32 most = sk->sk_max_ack_backlog, margin = most / 2;

	if (margin > ACCEPT_MARGIN)
		margin = ACCEPT_MARGIN;
	return sk->sk_ack_backlog + margin <= most;
}
