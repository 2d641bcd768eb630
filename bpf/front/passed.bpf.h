/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Passed: whether a packet that finds a guarded listener has come through the door.
 *
 * Problem: the door stands at the interfaces that were up when the policy came into force, and it knows packets by their port
 * there. Four kinds of packets find the listener unruled: those that came in at a later interface, that another program took
 * away before the door, that were encrypted, or that bear another port until the firewall redirects it.
 * How: the door notes the flow of each packet that it lets through and that belongs to no connection. The program that looks up
 * the listening socket of such a packet (steer) asks for the note; a packet without one was never ruled. A note is one word:
 *
 *      63                        24 23            0
 *     +----------------------------+---------------+
 *     |  hash of the flow, keyed   |  when, in ms  |
 *     +----------------------------+---------------+
 *
 * Limits: a note is good for PASSED_MS, since firewalls may keep a packet. A client that reaches the machine by two interfaces,
 * one of which has a door, can use the note on the other for that time. A lookup by another program of the machine counts like
 * a packet. The lookup of a connection that has its socket does not run steer: its packets from an interface without a door are
 * not ruled. A late packet whose socket has gone since it passed the door counts as one that passed none.
 * A connection of the machine to itself passes no door. It is recognized by its source address (the called address, or one of
 * the loopback) and by the device of the called address, if that is the loopback. From another address of its own to one of
 * another device the kernel names that device, as if the packet had come in there. So a small program at the loopback
 * (ingress_notes), through which alone such packets go, notes them. Addresses do not suffice: over IPv6, and with accept_local,
 * packets with an address of the machine's own arrive from outside. Packets that another program redirects to the loopback
 * count as the machine's own.
 */
#pragma once

#include "context.bpf.h"
#include "flow/key.bpf.h"
#include "flow/socket.bpf.h"
#include "guard.bpf.h"
#include "maps/guards.bpf.h"
#include "maps/passed.bpf.h"
#include "maps/secrets.bpf.h"

#define PASSED_MS   1000
#define PASSED_TIME 0xffffffull

static __always_inline __u64 passed_now(void)
{
	return bpf_ktime_get_ns() / 1000000 & PASSED_TIME;
}

static __always_inline bool passed_lately(__u64 note, __u64 now)
{
	return (now - note & PASSED_TIME) < PASSED_MS;
}

/* The place of a flow's note, or else the one of its two places that was taken first. */
static __always_inline __u64 *passed_place(__u64 hash, __u64 now)
{
	__u32 at = hash >> 1 & (PASSED_PLACES - 1), beside = at ^ 1;
	__u64 *one = bpf_map_lookup_elem(&passed, &at), *other = bpf_map_lookup_elem(&passed, &beside);

	if (!one || !other)
		return NULL;
	if ((*one ^ hash) <= PASSED_TIME)
		return one;
	if ((*other ^ hash) <= PASSED_TIME)
		return other;
	return (now - *one & PASSED_TIME) > (now - *other & PASSED_TIME) ? one : other;
}

/*
 * The door lets the packet through, and it belongs to no connection. A function of its own to the verifier, which then
 * follows it once.
 */
__noinline int passed_note(const struct packet *p __arg_nonnull)
{
	struct fief_flow_key key;
	__u64 hash, now, *place;

	flow_key(p, &key);
	hash = flow_hash(&key);
	now = passed_now();
	place = passed_place(hash, now);
	if (place)
		*(volatile __u64 *)place = (hash & ~PASSED_TIME) | now;
	return 0;
}

static __always_inline bool passed_find(const struct fief_flow_key *key)
{
	__u64 hash = flow_hash(key), now = passed_now(), *place = passed_place(hash, now), note;

	if (!place)
		return true; /* a table of ours is missing */
	note = *(volatile __u64 *)place;
	return (note ^ hash) <= PASSED_TIME && passed_lately(note, now);
}

/* A packet to a guarded port at the loopback. */
static __always_inline void own_note(struct __sk_buff *skb)
{
	struct packet packet = {};

	if (packet_read(skb, &packet))
		return;
	if (port_guarded(policy_slot(), packet.destination_port))
		passed_note(&packet);
}

/* The wire brings no such address: the kernel drops what claims it, or answers to itself. */
static __always_inline bool is_own(const struct fief_flow_key *key)
{
	const __u64 *remote = (const __u64 *)key->remote, *local = (const __u64 *)key->local;

	if (remote[0] == local[0] && remote[1] == local[1])
		return true;
	if (remote[0])
		return false;
	return remote[1] == bpf_cpu_to_be64(1) || bpf_be64_to_cpu(remote[1]) >> 24 == 0xffff7full;
}

/* Whether a packet that looks for this listener is refused, since it has passed no door. Counted. */
static __noinline bool unguarded_refuse(struct bpf_sk_lookup *ctx, __u32 slot, __u32 listener)
{
	__u32 at = slot * FIEF_MAX_LISTENERS + listener;
	struct fief_guard *guard = bpf_map_lookup_elem(&guards, &at);
	struct fief_flow_key key;
	bool refuse;

	if (!guard || !(guard->flags & FIEF_GUARD_EVERYWHERE))
		return false;
	if (!ctx->ingress_ifindex || ctx->ingress_ifindex == LOOPBACK_INDEX)
		return false; /* no packet came in: a program asks, or the machine calls itself */
	lookup_remote_address(ctx, (__u32 *)key.remote);
	lookup_local_address(ctx, (__u32 *)key.local);
	key.remote_port = bpf_ntohs(ctx->remote_port);
	key.local_port = ctx->local_port;
	key.pad = 0;
	if (is_own(&key) || passed_find(&key))
		return false;
	refuse = (guard->flags & (FIEF_GUARD_CLOSED | FIEF_GUARD_MONITOR)) == FIEF_GUARD_CLOSED;
	guard_count(guard, listener, FIEF_SYN_UNGUARDED, !refuse);
	return refuse;
}
