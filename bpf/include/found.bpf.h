/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Found: what a CPU found out last about an address of the policy: which listener it is, and until when it counts as
 * listening.
 *
 * Problem: each packet to a guarded port asks for the listener, which takes up to three hash lookups. And of a flood
 * nearly every SYN is dropped, by police or by a full lane: to find out first whether anybody listens there, and whether
 * the address is of this machine, costs more than all of police.
 * How: a small table of each CPU by address and port, good for the policy tables that it was filled from. While a
 * listener was seen listening within LIVE_NS, police and lanes speak before the kernel is asked.
 * Limits: for so long SYNs are dropped after the server has ended, instead of refused.
 */
#pragma once

#include "classify.bpf.h"
#include "maps/listeners_found.bpf.h"

#define LIVE_NS 10000000ull

/* A listener of the policy, by what the door needs of it: a copy, since the next lookup may give its place in the table to another one. */
struct policy_listener {
	__u32 index; /* as in struct fief_listener */
	__u32 serve;
};

struct listener_sought {
	__u64 address[2];
	__u32 slot;
	__u16 port;
};

/* Its place in the table, once it is there; LISTENERS_FOUND: no listener of the policy. Global: it is asked for in many places. */
__noinline __u32 listener_place(const struct listener_sought *what __arg_nonnull)
{
	__u32 at = (what->port ^ what->address[1] >> 56) & (LISTENERS_FOUND - 1);
	struct listener_found *kept = bpf_map_lookup_elem(&listeners_found, &at);
	struct fief_control *control = control_get();
	struct fief_listener *listener;

	if (!control || !kept)
		return LISTENERS_FOUND;
	if (kept->address[0] == what->address[0] && kept->address[1] == what->address[1] && kept->port == what->port &&
	    kept->slot == what->slot && kept->epoch == control->epoch)
		return at;
	listener = find_listener(what->slot, what->address, what->port);
	if (!listener)
		return LISTENERS_FOUND;
	/* last of all whose tables it is of: what runs in between must not take half of it for whole */
	*(volatile __u32 *)&kept->epoch = control->epoch - 1;
	barrier();
	kept->address[0] = what->address[0];
	kept->address[1] = what->address[1];
	kept->port = what->port;
	kept->slot = what->slot;
	kept->index = listener->index;
	kept->serve = listener->serve;
	kept->live_until_ns = 0;
	barrier();
	*(volatile __u32 *)&kept->epoch = control->epoch;
	return at;
}

/* The listener of the policy at this address (16 bytes from a multiple of 8); NULL: none. It stands there until another address is looked up. */
static __always_inline struct listener_found *listener_search(__u32 slot, const void *address, __u16 port)
{
	struct listener_sought what = {.slot = slot, .port = port};
	__u32 at;

	address_copy(what.address, address);
	at = listener_place(&what);
	return bpf_map_lookup_elem(&listeners_found, &at);
}

static __always_inline bool is_live(const struct listener_found *listener, __u64 now)
{
	return listener->live_until_ns > now;
}

/* A socket of this machine listens there. */
static __always_inline void live_note(struct listener_found *listener, __u64 now)
{
	listener->live_until_ns = now + LIVE_NS;
}
