/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Door: what happens to a packet to a guarded port. The most frequent cases come first where that is cheap.
 *
 *   a banned client's       is dropped, whatever it is; the end of a connection that has a place of a queue resets that
 *   SYN                     is policed, then answered by us or left to the kernel; while nobody listens it may come again
 *   SYN-ACK                 is dropped where it would end a handshake
 *   RST without a socket    is dropped
 *   ACK                     without bytes passes to a connection (bare.bpf.h); else it is another program's (ack.bpf.h)
 *
 * Listeners with `forward` have their own path (forward.bpf.h): their connections are other machines'.
 *
 * Limits: connections that the kernel made (admission below its level, TIME_WAIT, a listener of multipath TCP unless the kernel
 * answers with cookies) are ruled as they pass.
 */
#pragma once

#include "absent.bpf.h"
#include "banned.bpf.h"
#include "freed.bpf.h"
#include "bare.bpf.h"
#include "ends.bpf.h"
#include "handed.bpf.h"
#include "handshake.bpf.h"
#include "kernel_handshake.bpf.h"
#include "leave.bpf.h"
#include "local.bpf.h"
#include "plain.bpf.h"
#include "police.bpf.h"
#include "follows.bpf.h"

/* What police lets pass: answered here, or left to the kernel. */
static __noinline int syn_answer(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening)
{
	struct segment *synack;
	int verdict;

	if (!admit_in_force(front))
		return syn_pass(skb, front);
	if (front->guard->flags & FIEF_GUARD_KERNEL) {
		kernel_cookie_prepare(skb, front);
		return syn_pass(skb, front);
	}
	if (is_multipath(listening))
		return syn_pass(skb, front);
	synack = handshake_answer(skb, front, listening);
	verdict = synack ? segment_answer(skb, &front->packet, synack) : TCX_DROP;
	if (verdict != SEGMENT_UNROUTED)
		syn_count(front, false);
	return verdict;
}

/* A SYN from a port whose last connection is remembered (TIME_WAIT): whether it may reuse it, the kernel has to say. */
static __always_inline int reuse_rule(struct __sk_buff *skb, struct front_context *front)
{
	bool drop = false;

	if (front->packet.odd)
		return shape_rule(front);
	police_syn(front, &drop);
	return drop ? TCX_DROP : syn_pass(skb, front);
}

static __always_inline int syn_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				    bool policed)
{
	bool drop = false;

	if (!policed) {
		if (!is_local(skb, listening, &front->packet))
			return TCX_NEXT;
		live_now(front);
		if (front->packet.odd)
			return shape_rule(front);
		police_syn(front, &drop);
	}
	return drop ? TCX_DROP : syn_answer(skb, front, listening);
}

static __always_inline int syn_arrives(struct __sk_buff *skb, struct front_context *front)
{
	struct tcp_sock *listening = NULL;
	bool drop = false, policed;
	int verdict = TCX_NEXT;
	struct bpf_sock *sk;
	__u32 state;

	if (!guard_find(front))
		return TCX_NEXT;
	if (is_forward(front))
		return forward_syn(front);
	policed = !front->packet.odd && front->live;
	if (policed) {
		police_syn(front, &drop);
		if (drop)
			return TCX_DROP;
	}
	sk = socket_find(skb, &front->packet, &front->listener);
	if (!sk) {
		tick_wake(skb, front->guard->queue, front->now);
		return absent_rule(skb, front);
	}
	state = sk->state;
	barrier_var(state);
	if (state == BPF_TCP_LISTEN)
		listening = bpf_skc_to_tcp_sock(sk);
	if (listening) {
		present_note(front);
		load_look(front, sk);
		verdict = syn_rule(skb, front, listening, policed);
	} else if (state == BPF_TCP_TIME_WAIT) {
		verdict = policed ? syn_pass(skb, front) : reuse_rule(skb, front);
	}
	bpf_sk_release(sk);
	return verdict;
}

/*
 * A client that resets its connection in the middle of a request leaves the place that the begin had. An answer that nobody
 * asked for draws a reset without an acknowledgement: floods of them cost nothing here. `begun`: there is a socket.
 */
static __noinline int reset_forget(const struct packet *p, bool begun)
{
	struct half_name name;

	if (p->flags & TCP_ACK)
		half_reset(p, begun ? HALF_LATER : p->ack - 1, &name);
	return 0;
}

/*
 * A reset of what has no socket. Clients send them upon an answer that they did not ask for, as many as a spoofed flood
 * has SYNs. The kernel would drop it too, behind its whole receive path.
 */
static __always_inline int reset_arrives(struct __sk_buff *skb, struct front_context *front)
{
	struct tcp_sock *listening = NULL;
	int verdict = TCX_NEXT;
	struct bpf_sock *sk;

	if (!guard_only_find(front) || is_forward(front))
		return TCX_NEXT;
	if (front->guard->flags & FIEF_GUARD_POLICE)
		end_forget(&front->packet); /* the socket that it ends may not be there yet, but in the same batch */
	if (!admit_in_force(front))
		return TCX_NEXT;
	sk = socket_find(skb, &front->packet, &front->listener);
	if (!sk)
		return TCX_NEXT;
	front->connected = sk->state != BPF_TCP_LISTEN;
	if (sk->state == BPF_TCP_LISTEN && !(front->guard->flags & FIEF_GUARD_KERNEL))
		listening = bpf_skc_to_tcp_sock(sk);
	if (front->guard->queue)
		queue_reset(skb, &front->packet, front->connected);
	if (!front->connected)
		reset_forget(&front->packet, false);
	else if (has_stream(sk->state) && reset_ended(&front->packet, sk))
		reset_forget(&front->packet, true);
	if (listening && (front->live || is_local(skb, listening, &front->packet)))
		verdict = TCX_DROP;
	bpf_sk_release(sk);
	return verdict;
}

/*
 * A SYN-ACK, which no client of ours sends. At a listener the kernel answers it by a reset. But of one with bytes, at the
 * number of the SYN, a request socket becomes a socket that any bare ACK completes: its handshake would end uncounted.
 */
static __noinline int greeting_arrives(struct __sk_buff *skb, struct front_context *front)
{
	struct bpf_sock *sk;
	__u32 state;

	if (!guard_only_find(front) || is_forward(front))
		return TCX_NEXT;
	sk = socket_find(skb, &front->packet, &front->listener);
	if (!sk)
		return TCX_NEXT;
	state = sk->state;
	bpf_sk_release(sk);
	return state == BPF_TCP_NEW_SYN_RECV ? shape_rule(front) : TCX_NEXT;
}

static __always_inline int packet_arrives(struct __sk_buff *skb, struct front_context *front)
{
	__u8 flags = front->packet.flags;

	switch (flags & (TCP_SYN | TCP_RST | TCP_ACK)) {
	case TCP_SYN:
		return flags & TCP_FIN ? TCX_NEXT : syn_arrives(skb, front);
	case TCP_SYN | TCP_ACK:
		return greeting_arrives(skb, front);
	default:
		/* with a SYN too it resets; without, the kernel drops or refuses it by itself, as a SYN with a FIN */
		return flags & TCP_RST ? reset_arrives(skb, front) : TCX_NEXT;
	}
}

/* Whether the packet ends a connection that may keep a place. */
static __always_inline bool may_free(const struct front_context *front)
{
	return front->packet.flags & (TCP_FIN | TCP_RST) && !front->packet.odd && front->guard->queue;
}

/* A packet to a guarded port. */
static __always_inline int door(struct __sk_buff *skb, struct front_context *front)
{
	int verdict;

	if (any_banned() && ban_rule(front) == TCX_DROP)
		return may_free(front) ? banned_ends(skb, &front->packet, true) : TCX_DROP;
	if (front->packet.forged)
		return guard_only_find(front) ? shape_rule(front) : TCX_NEXT;
	if (is_ack(&front->packet)) {
		verdict = bare_rule(skb, &front->packet);
		return verdict == BARE_OPEN ? ack_hand(skb, front) : verdict;
	}
	return door_leave(skb, front, packet_arrives(skb, front));
}
