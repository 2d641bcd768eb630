/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Owner: the container that a packet's protocol work is for, known before any of it is done.
 *
 * Problem: the order of receive work is the order of the receiving sockets' containers, also after a socket got another.
 * How: the socket is looked up as the transport layer will do it, and its label is read at each packet: relabelling a socket
 * moves its receive work. For a listening socket, which has many clients, the class of the source address counts.
 * Limits: without a socket (time wait, none at all) the class of the source address counts. Sockets bound to an interface and
 * addresses of other hosts are not ours. The packet that makes an admitted connection takes no lane: a virtual interface
 * forgets the request socket that the door has given it.
 */
#pragma once

#include "found.bpf.h"
#include "flow/key.bpf.h"
#include "flow/route.bpf.h"
#include "maps/labels.bpf.h"
#include "maps/containers.bpf.h"

/* Whether the door has given the packet the request socket of its connection. */
static __always_inline bool makes_connection(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk; /* on a packet of this machine's, its sender */

	return sk && sk->state == BPF_TCP_NEW_SYN_RECV;
}

/* Whether this packet is one that may have a lane, and whose it is. */
static __always_inline bool arrival_owner(struct __sk_buff *skb, const struct packet *p, __u32 slot,
					  struct listener_found *listener, struct fief_ref *owner)
{
	struct bpf_sock *sk;
	bool connected = false, bound = false, listening = false;
	struct bpf_sock_tuple tuple;
	struct fief_client *client;
	struct fief_label *label;

	flow_tuple(p, &tuple);
	if (p->ipv6)
		sk = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (sk) {
		listening = sk->state == BPF_TCP_LISTEN;
		connected = !listening;
		bound = sk->bound_dev_if != 0;
		label = connected ? bpf_sk_storage_get(&labels, sk, 0, 0) : NULL;
		if (label && label->container.id == FIEF_NO_ID && label->listener != FIEF_NO_LISTENER)
			label = NULL; /* an application has taken its own container back */
		if (label)
			*owner = label->container;
		bpf_sk_release(sk);
		if (bound)
			return false;
		if (label)
			return true;
	}
	if (!connected && !route_is_local(skb, p))
		return false;
	if (listening)
		live_note(listener, bpf_ktime_get_coarse_ns());
	client = classify(slot, listener->index, p->source);
	if (!client)
		return false;
	*owner = client->container;
	return true;
}
