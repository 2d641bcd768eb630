/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Live: at which address a listener was found listening a moment ago.
 *
 * Problem: of a flood nearly every SYN is dropped by police, and to find out first whether anybody listens there, and
 * whether the address is of this machine, costs more than all of police.
 * How: each CPU remembers the last such finding of a listener for LIVE_NS. While it holds, police speaks before the
 * kernel is asked.
 * Limits: for so long SYNs above a rate are dropped after the server has ended, instead of refused.
 */
#pragma once

#include "context.bpf.h"

#define LIVE_NS 10000000ull

struct live {
	__u64 address[2];
	__u64 until_ns;
	__u32 port;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIEF_MAX_LISTENERS);
	__type(key, __u32);
	__type(value, struct live);
} found_live SEC(".maps");

static __always_inline bool live_known(const struct front_context *front)
{
	const __u64 *address = (const __u64 *)front->packet.destination;
	__u32 listener = front->listener->index;
	struct live *live = bpf_map_lookup_elem(&found_live, &listener);

	return live && live->until_ns > front->now && live->port == front->packet.destination_port &&
	       live->address[0] == address[0] && live->address[1] == address[1];
}

static __always_inline void live_note(const struct front_context *front)
{
	const __u64 *address = (const __u64 *)front->packet.destination;
	__u32 listener = front->listener->index;
	struct live *live = bpf_map_lookup_elem(&found_live, &listener);

	if (!live)
		return;
	live->address[0] = address[0];
	live->address[1] = address[1];
	live->port = front->packet.destination_port;
	live->until_ns = front->now + LIVE_NS;
}
