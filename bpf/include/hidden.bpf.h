/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hidden: a class listener is reached by the address that it serves, never by its own.
 *
 * Problem: it is bound to a port of loopback, where any local process could connect and be served as a client
 * of that class. The wire cannot: the kernel refuses loopback addresses that come from outside.
 * How: a steered packet still bears the port that its sender meant. One that bears the socket's own port was
 * not steered, and is dropped as it reaches the socket.
 * Limits: the sender sees no answer, as behind a firewall.
 */
#pragma once

#include "maps/labels.bpf.h"

static __always_inline bool reaches_hidden(struct __sk_buff *skb, struct bpf_sock *sk, struct fief_label *label)
{
	__u32 transport = 40;
	__u16 port = 0;
	__u8 first = 0;

	if (!label || !(label->flags & FIEF_LABEL_CLASS_LISTENER))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, 0, &first, 1);
		transport = (first & 15) * 4;
	}
	bpf_skb_load_bytes(skb, transport + 2, &port, 2);
	return bpf_ntohs(port) == sk->src_port;
}
