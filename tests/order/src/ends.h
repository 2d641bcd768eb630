/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What containers have used, and leave at their end (core.c). */
#pragma once

/* Whether its usage goes up when it ends. */
void core_passes_up(__u32 id, bool up)
{
	table[id].attributes[0].pass_up = up;
}

/* A packet of it takes so long, which this CPU's cache has until the container ends. */
void core_uses(__u32 id, __u64 ns)
{
	slot_of(&cpu, own_ref(id))->receive_ns += ns;
}

/* By its record and the cache. */
__u64 core_used(__u32 id)
{
	const struct fief_cache_slot *slot = &cpu.cache[id & (FIEF_CACHE_SLOTS - 1)];

	return table[id].usage.receive_ns + (same_ref(slot->container, own_ref(id)) ? slot->receive_ns : 0);
}
