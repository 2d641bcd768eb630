/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Made: what the door ruled for one connection goes to no other one.
 *
 *   RST            the door finds the connection's socket       TCP ends it
 *   ACK, cookie    the door finds it too, and takes the segment  TCP finds the listening socket only, and makes a
 *                  for one of that connection                    connection of the kernel's cookie, with the bytes
 *
 *   ACK, cookie    the door finds the listening socket only      TCP makes the connection
 *   one number on  the door finds that too, and rules the bytes  TCP finds the new socket, drops the bytes that it
 *                  as the first of a connection                  has, and takes the others for what follows
 *
 * Problem: packets of one batch pass the door before the first of them has reached TCP, and fragments can be kept back. A cookie
 * that comes again behind what ends its connection was ruled as a segment of that: no rate counted the new connection, and no
 * rule saw its bytes. And a cookie of the kernel's is good for four numbers, of which each may be that of the first byte.
 * How: the door marks what it took for a segment of a connection, and what it took for the begin of one, in a field of the packet that
 * nobody else uses at this place. TCP asks the programs of cgroups about a packet once it has found its socket: a listening one does
 * not get the former, and one of a connection gets the latter only if these are its very next bytes, as the bare end of its handshake may
 * have come in the same batch, or if it began with the byte that was ruled. The client sends it again, and then the door finds what TCP does.
 * Limits: the socket has to be below the cgroup2 mount that Fief sees. A program or filter behind the door that ends the chain
 * with OK, at this interface or one above, takes the mark (tcx_action_code, tc_run).
 */
#pragma once

#include "flow/socket.bpf.h"
#include "flow/steered.bpf.h"
#include "guard.bpf.h"
#include "listening.bpf.h"
#include "owed.bpf.h"

/* The door has found the packet's socket, in this state. */
static __always_inline void made_mark(struct __sk_buff *skb, __u32 state)
{
	if (state != BPF_TCP_LISTEN && state != BPF_TCP_NEW_SYN_RECV)
		skb->tc_index = MARKS | MARK_MADE;
	else if (is_marked(skb, MARK_MADE | MARK_BEGINS))
		skb->tc_index = 0; /* of a door before this one */
}

/* The listener that the packet was sent to, by its address: the socket that TCP has found may have any. */
static __always_inline struct listener_found *meets_listener(struct __sk_buff *skb, __u32 slot)
{
	__u32 address[4] __attribute__((aligned(8))) = {0, 0, bpf_htonl(0xffff), 0};
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

/* Of a packet that has come to another socket than it was ruled for: whether its listener's guard lets it pass. Counted. */
static __noinline bool made_lets(struct __sk_buff *skb)
{
	__u32 slot = policy_slot(), at;
	struct listener_found *listener = meets_listener(skb, slot);
	struct fief_guard *guard;
	bool monitored;

	if (!listener)
		return true;
	at = slot * FIEF_MAX_LISTENERS + listener->index;
	guard = bpf_map_lookup_elem(&guards, &at);
	if (!guard || guard->flags & FIEF_GUARD_FORWARD)
		return true;
	monitored = guard->flags & FIEF_GUARD_MONITOR;
	guard_count(guard, listener->index, FIEF_ACK_BAD, monitored);
	return monitored;
}

/* The packet's flow. */
static __always_inline bool made_flow(struct __sk_buff *skb, __u8 head, struct fief_flow_key *key)
{
	__u32 *remote = (__u32 *)key->remote, *local = (__u32 *)key->local;

	key->remote_port = bpf_ntohl(*(volatile __u32 *)&skb->remote_port);
	key->local_port = *(volatile __u32 *)&skb->local_port;
	if (head >> 4 == 6)
		return !bpf_skb_load_bytes_relative(skb, 8, remote, 16, BPF_HDR_START_NET) &&
		       !bpf_skb_load_bytes_relative(skb, 24, local, 16, BPF_HDR_START_NET);
	remote[2] = local[2] = bpf_htonl(0xffff);
	return !bpf_skb_load_bytes_relative(skb, 12, &remote[3], 4, BPF_HDR_START_NET) &&
	       !bpf_skb_load_bytes_relative(skb, 16, &local[3], 4, BPF_HDR_START_NET);
}

/*
 * Whether the socket is that of the connection which the packet was ruled for: it expects the packet's first byte, or its own first one is
 * that of the flow's verdict. Its header has no extensions: it is not odd.
 */
static __noinline bool is_ruled_for(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct fief_flow_key key = {};
	struct fief_admitted *entry;
	__be32 seq = 0;
	__u8 head = 0;
	__u32 at;

	if (!tcp || bpf_skb_load_bytes_relative(skb, 0, &head, 1, BPF_HDR_START_NET))
		return false;
	at = head >> 4 == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	at += offsetof(struct tcphdr, seq);
	if (bpf_skb_load_bytes_relative(skb, at, &seq, sizeof(seq), BPF_HDR_START_NET))
		return false;
	if (bpf_ntohl(seq) == tcp->rcv_nxt)
		return true;
	entry = made_flow(skb, head, &key) ? admitted_find(&key) : NULL;
	return entry && tcp->rcv_nxt - (__u32)tcp->bytes_received == entry->begin;
}

/* Whether the socket that TCP has found may have the packet. */
static __always_inline bool made_passes(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	bool listens;

	if (!is_marked(skb, MARK_MADE | MARK_BEGINS) || !sk)
		return true;
	listens = *(volatile __u32 *)&sk->state == BPF_TCP_LISTEN;
	/* most packets are of a connection, and were taken for that: nothing more is asked about them */
	if (!is_marked(skb, listens ? MARK_MADE : MARK_BEGINS) || !is_steered(sk))
		return true;
	return (!listens && is_ruled_for(skb, sk)) || made_lets(skb);
}
