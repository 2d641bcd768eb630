/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Made: a segment that came to the door for a connection begins no other one.
 *
 *   RST           the door finds the connection's socket        TCP ends it
 *   ACK, cookie   the door finds it too, and takes the segment   TCP finds the listening socket only, and makes a
 *                 for one of that connection                     connection of the kernel's cookie, with the bytes
 *
 * Problem: packets of one batch pass the door before the first of them has reached TCP, and fragments can be kept back. A cookie
 * that comes again behind what ends its connection was ruled as a segment of that: no rate counted the new connection, and no
 * rule saw its bytes.
 * How: the door marks what it took for a segment of a connection, in a field of the packet that nobody else uses at this place.
 * TCP asks the programs of cgroups about a packet once it has found its socket: a listening one does not get what is marked.
 * The client sends it again, and then the door finds what TCP does.
 * Limits: the socket has to be below the cgroup2 mount that Fief sees. A program or filter behind the door that ends the chain
 * with OK, at this interface or one above, takes the mark (tcx_action_code, tc_run).
 */
#pragma once

#include "flow/socket.bpf.h"
#include "flow/steered.bpf.h"
#include "listening.bpf.h"
#include "owed.bpf.h"
#include "verdict.bpf.h"

/* The door has found the packet's socket, in this state. */
static __always_inline void made_mark(struct __sk_buff *skb, __u32 state)
{
	if (state != BPF_TCP_LISTEN && state != BPF_TCP_NEW_SYN_RECV)
		skb->tc_index = MADE_INDEX;
	else if (is_made(skb))
		skb->tc_index = 0; /* of a door before this one */
}

/* The listener that the packet was sent to, by its address: the socket that TCP has found may have any. */
static __always_inline struct listener_found *meets_listener(struct __sk_buff *skb, __u32 slot)
{
	__u32 address[4] = {0, 0, bpf_htonl(0xffff), 0};
	__u8 head = 0;
	long failed;

	if (bpf_skb_load_bytes_relative(skb, 0, &head, 1, BPF_HDR_START_NET))
		return NULL;
	if (head >> 4 == 6)
		failed = bpf_skb_load_bytes_relative(skb, 24, address, 16, BPF_HDR_START_NET);
	else
		failed = bpf_skb_load_bytes_relative(skb, 16, &address[3], 4, BPF_HDR_START_NET);
	return failed ? NULL : listener_search(slot, (__u8 *)address, *(volatile __u32 *)&skb->local_port);
}

/* Of a marked packet that has come to a listening socket: whether its listener's guard lets it pass. Counted. */
static __noinline bool made_lets(struct __sk_buff *skb)
{
	__u32 slot = policy_slot(), at;
	struct listener_found *listener = meets_listener(skb, slot);
	struct fief_verdict_key key = {.rule = FIEF_NO_ID, .reason = FIEF_ACK_BAD};
	struct fief_guard *guard;

	if (!listener)
		return true;
	at = slot * FIEF_MAX_LISTENERS + listener->index;
	guard = bpf_map_lookup_elem(&guards, &at);
	if (!guard || guard->flags & FIEF_GUARD_FORWARD)
		return true;
	key.container = guard->fallback;
	key.listener = listener->index;
	key.monitored = !!(guard->flags & FIEF_GUARD_MONITOR);
	verdict_add(&key, 1);
	return key.monitored;
}

/* Whether the socket that TCP has found may have the packet. */
static __always_inline bool made_passes(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (!is_made(skb) || !sk || *(volatile __u32 *)&sk->state != BPF_TCP_LISTEN || !is_steered(sk))
		return true;
	return made_lets(skb);
}
