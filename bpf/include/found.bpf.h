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

/* The listener of the policy at this address (16 bytes); NULL: none. */
static __noinline struct listener_found *listener_search(__u32 slot, const void *address, __u16 port)
{
	struct fief_control *control = control_get();
	struct listener_found *kept;
	struct fief_listener *listener;
	__u64 words[2];
	__u32 at;

	if (!control)
		return NULL;
	__builtin_memcpy(words, address, 16);
	at = (port ^ words[1] >> 56) & (LISTENERS_FOUND - 1);
	kept = bpf_map_lookup_elem(&listeners_found, &at);
	if (!kept)
		return NULL;
	if (kept->address[0] == words[0] && kept->address[1] == words[1] && kept->port == port && kept->slot == slot &&
	    kept->epoch == control->epoch)
		return kept;
	listener = find_listener(slot, address, port);
	if (!listener)
		return NULL;
	/* last of all whose tables it is of: what runs in between must not take half of it for whole */
	*(volatile __u32 *)&kept->epoch = control->epoch - 1;
	barrier();
	kept->address[0] = words[0];
	kept->address[1] = words[1];
	kept->port = port;
	kept->slot = slot;
	kept->index = listener->index;
	kept->serve = listener->serve;
	kept->live_until_ns = 0;
	barrier();
	*(volatile __u32 *)&kept->epoch = control->epoch;
	return kept;
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
