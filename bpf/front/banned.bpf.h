/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Banned: packets of a client that the operator has shut out by name (`fief ban`).
 *
 * Problem: somebody has to be shut out now, whatever the rules say, and let in again without anybody's doing.
 * How: before all else, all packets to a guarded port are dropped that come from a prefix whose ban has not ended yet. The
 * lookup finds the longest prefix alone. So user space gives each one the latest end of those around it. A request that waited comes by
 * a packet of ours, and is asked about again (deliver.bpf.h). What keeps others out ends with the client: where it ends a connection that has
 * a place of a queue, or had a request in line there, that packet becomes the reset of the server's socket (freed.bpf.h).
 * Limits: other connections that the client has stay at the server until the server gives them up, and so does one with a place whose client
 * does not end it, or does by a RST that acknowledges nothing and stands behind bytes that were dropped. Where no guard stands, nobody is
 * banned. A guard on trial counts what it would drop.
 */
#pragma once

#include "guard.bpf.h"
#include "verdict.bpf.h"
#include "maps/bans.bpf.h"

static __always_inline bool any_banned(void)
{
	__u32 zero = 0, *count = bpf_map_lookup_elem(&ban_counts, &zero);

	return count && *count;
}

static __noinline int ban_rule(struct front_context *front)
{
	struct fief_ban_key key = {.bits = 128};
	struct fief_ban *ban;
	bool monitored;

	__builtin_memcpy(key.address, front->packet.source, 16);
	ban = bpf_map_lookup_elem(&bans, &key);
	if (!ban || !guard_only_find(front) || ban->until_ns <= front->now)
		return TCX_NEXT;
	monitored = front->guard->flags & FIEF_GUARD_MONITOR;
	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_BANNED, monitored);
	return monitored ? TCX_NEXT : TCX_DROP;
}
