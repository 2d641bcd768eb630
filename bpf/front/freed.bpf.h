/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Freed: a banned client ends its connection, and the server's socket with it: what that keeps from others comes back. */
#pragma once

#include "listening.bpf.h"
#include "made.bpf.h"
#include "places.bpf.h"
#include "reset.bpf.h"
#include "taken.bpf.h"

/*
 * The packet, of a banned client's connection, becomes the reset of the server's socket. TCP lacks what was dropped before it, so its number is
 * not TCP's next one. `lasting`: only where the connection keeps a place.
 */
static __noinline int banned_ends(struct __sk_buff *skb, struct packet *p, bool lasting)
{
	struct tcp_sock *tcp = NULL;
	int verdict = TCX_DROP;
	struct bpf_sock *sk;
	__u32 state;

	if (lasting && !flow_lasts(p))
		return TCX_DROP;
	sk = socket_find(skb, p, NULL);
	if (!sk)
		return TCX_DROP;
	state = sk->state;
	barrier_var(state);
	if (has_stream(state))
		tcp = bpf_skc_to_tcp_sock(sk);
	if (tcp && is_in_window(p, tcp)) {
		made_mark(skb, state);
		p->ack = tcp->snd_nxt;
		if (!socket_reset(skb, p, tcp->rcv_nxt))
			verdict = TCX_NEXT;
	}
	bpf_sk_release(sk);
	return verdict;
}
