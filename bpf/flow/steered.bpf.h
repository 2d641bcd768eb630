/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Steered: whether a socket is of the network namespace whose connections are steered. */
#pragma once

#include "maps/steered.bpf.h"

/* A user that is root in a network namespace of its own can bind everything there, and must gain nothing here. */
static __always_inline bool is_of_steered(const struct sock *sk)
{
	__u32 zero = 0;
	struct fief_netns *netns = bpf_map_lookup_elem(&steered, &zero);

	return netns && netns->cookie && sk->__sk_common.skc_net.net->net_cookie == netns->cookie;
}

static __always_inline bool is_steered(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	return tcp && is_of_steered(&tcp->inet_conn.icsk_inet.sk);
}
