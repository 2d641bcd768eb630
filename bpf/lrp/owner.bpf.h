/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Owner: the container that a packet's protocol work is for, known before any of it is done.
 *
 * Problem: the order of receive work is the order of the receiving sockets' containers, also after a socket got another.
 * How: the socket is looked up as the transport layer will do it, and its label is read at each packet: who relabels a
 * socket moves its receive work. A listening socket has many clients: theirs is the class of the source address.
 * Limits: no socket (time wait, none at all): the class of the source address. Sockets bound to an interface and
 * addresses of other hosts are not ours. The packet that makes an admitted connection goes straight: a virtual interface forgets the
 * request socket that the door has given it.
 */
#pragma once

#include "arrival.bpf.h"
#include "maps/labels.bpf.h"
#include "maps/containers.bpf.h"

/* Addressed to this host, and not through it. Where nothing is forwarded, what is not for us dies in the network layer. */
static __always_inline bool is_local(struct __sk_buff *skb, struct arrival *a)
{
	struct bpf_fib_lookup route = {.ifindex = skb->ingress_ifindex};
	long found;

	if (a->ipv4) {
		route.family = AF_INET;
		route.ipv4_src = a->tuple.ipv4.saddr;
		route.ipv4_dst = a->tuple.ipv4.daddr;
	} else {
		route.family = AF_INET6;
		__builtin_memcpy(route.ipv6_src, a->source, 16);
		__builtin_memcpy(route.ipv6_dst, a->destination, 16);
	}
	route.l4_protocol = IPPROTO_TCP;
	found = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	return found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Whether the door has given the packet the request socket of its connection. */
static __always_inline bool makes_connection(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk; /* on a packet of this machine's, its sender */

	return sk && sk->state == BPF_TCP_NEW_SYN_RECV;
}

/* Whether this packet is one that may have a lane, and whose it is. */
static __always_inline bool arrival_owner(struct __sk_buff *skb, struct arrival *a, __u32 slot,
					  struct fief_listener *listener, struct fief_ref *owner)
{
	struct bpf_sock *sk;
	bool connected = false, bound = false;
	struct fief_client *client;
	struct fief_label *label;

	if (a->ipv4)
		sk = bpf_sk_lookup_tcp(skb, &a->tuple, sizeof(a->tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_sk_lookup_tcp(skb, &a->tuple, sizeof(a->tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (sk) {
		connected = sk->state != BPF_TCP_LISTEN;
		bound = sk->bound_dev_if != 0;
		label = connected ? bpf_sk_storage_get(&labels, sk, 0, 0) : NULL;
		if (label)
			*owner = label->container;
		bpf_sk_release(sk);
		if (bound)
			return false;
		if (label)
			return true;
	}
	if (!connected && !is_local(skb, a))
		return false;
	client = classify(slot, listener->index, a->source);
	if (!client)
		return false;
	*owner = client->container;
	return true;
}
