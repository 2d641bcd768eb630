/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Bare: acknowledgements without bytes, most of which pass at once.
 *
 *   the end of a handshake   that this CPU has just answered is dropped without a lookup (expected.bpf.h)
 *   a connection's           passes
 *   anything else            is for ack.bpf.h
 *
 * Problem: each answer of a server draws one, and nothing is asked about it. To hand it to the next program costs more than all else that is
 * done for it, once the program's instructions and tables have left the caches.
 * How: the door's own program looks up the socket, and marks the packet as the next one would (made.bpf.h).
 * Limits: where it is no connection's its socket is looked up twice.
 */
#pragma once

#include "expected.bpf.h"
#include "listening.bpf.h"
#include "made.bpf.h"

#define BARE_OPEN -9 /* as a verdict: there is none yet */

static __noinline int bare_rule(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock *sk;
	bool passes;
	__u32 state;

	if (p->odd || !is_bare(p))
		return BARE_OPEN;
	if (end_expected(p))
		return TCX_DROP;
	sk = socket_find(skb, p, NULL);
	if (!sk)
		return BARE_OPEN;
	state = sk->state;
	barrier_var(state);
	/* of one that is bound to an interface the verdict may still wait elsewhere (labelled.bpf.h) */
	passes = state != BPF_TCP_LISTEN && state != BPF_TCP_NEW_SYN_RECV && !sk->bound_dev_if;
	if (passes)
		made_mark(skb, state);
	bpf_sk_release(sk);
	return passes ? TCX_NEXT : BARE_OPEN;
}
