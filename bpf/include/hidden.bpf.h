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

#include "flow/received.bpf.h"
#include "maps/labels.bpf.h"

static __always_inline bool reaches_hidden(struct __sk_buff *skb, struct bpf_sock *sk, struct fief_label *label)
{
	__u16 source, destination;

	if (!label || !(label->flags & FIEF_LABEL_CLASS_LISTENER))
		return false;
	received_ports(skb, &source, &destination);
	return destination == sk->src_port;
}
