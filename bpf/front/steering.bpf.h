/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steering: what the door passes to the program that the kernel runs within the door's own lookup of a socket.
 *
 * Problem: both need the listener of the policy, which takes up to three hash lookups, and under a flood most packets reach
 * both. And that program asks whether a packet has passed the door, which is not decided yet.
 * How: a word of the CPU, set around the lookup. Neither program can be interrupted by another of its kind there.
 */
#pragma once

#include "found.bpf.h"

struct steering {
	__u32 looking;	/* the door looks, and not the transport layer */
	__u32 known;	/* and says which listener it is */
	__u32 listener; /* index */
	__u32 serve;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct steering);
} steerings SEC(".maps");

static __always_inline struct steering *steering_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&steerings, &zero);
}

/* `listener`: NULL if it is not known. */
static __always_inline struct steering *steering_begin(const struct policy_listener *listener)
{
	struct steering *here = steering_here();

	if (!here)
		return NULL;
	here->looking = 1;
	if (listener) {
		here->listener = listener->index;
		here->serve = listener->serve;
		here->known = 1;
	}
	return here;
}

static __always_inline void steering_end(struct steering *here)
{
	if (!here)
		return;
	here->known = 0;
	here->looking = 0;
}
