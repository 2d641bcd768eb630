/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Freed: a banned client ends its connection, and the server's socket with it: what that keeps from others comes back. */
#pragma once

#include "listening.bpf.h"
#include "made.bpf.h"
#include "places.bpf.h"
#include "reset.bpf.h"
#include "taken.bpf.h"

/*
 * Whether its sender sees the connection that it ends. TCP may lack what came before, so its place can be any in the window, which a forger
 * guesses; what it acknowledges is not guessed too. A RST without that has to be the next, as for TCP (RFC 5961, 3.2).
 */
static __always_inline bool is_known_end(const struct packet *p, struct tcp_sock *tcp)
{
	return is_in_window(p, tcp) && (p->flags & TCP_ACK ? is_known_ack(p, tcp) : p->seq == tcp->rcv_nxt);
}

/*
 * The packet, of a banned client's connection, becomes the reset of the server's socket. TCP lacks what was dropped before it, so its number is
 * not TCP's next one. `lasting`: it came by the wire, perhaps from a forger, and ends only a connection that keeps a place; else it is a request
 * of ours that waited, and what it acknowledges may be old by now.
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
	if (tcp && (lasting ? is_known_end(p, tcp) : is_in_window(p, tcp))) {
		made_mark(skb, state);
		p->ack = tcp->snd_nxt;
		if (!socket_reset(skb, p, tcp->rcv_nxt))
			verdict = TCX_NEXT;
	}
	bpf_sk_release(sk);
	return verdict;
}
