/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Spent: the CPU time of a container, read while it is charged.
 *
 * Problem: the record of a container lacks the charges that the CPUs still hold in their caches, and the open stints.
 * How: all three are added, once. A reader that must never see time twice tries again (the core's usage.bpf.h).
 * Limits: what is flushed in between is not seen, until the next look. Limits by CPU time look again and again and count differences
 * only; who finds less than before looks once more. A look visits each CPU, so the callers look once in a while.
 */
#pragma once

#include "maps/containers.bpf.h"
#include "maps/cpus.bpf.h"

/* What one CPU holds for a container. `received`: 0 without receive work, else all ones. */
static __always_inline __u64 spent_on_cpu(struct fief_cpu *cpu, struct fief_ref of, __u64 now, __u64 received)
{
	struct fief_cache_slot *slot = &cpu->cache[of.id & (FIEF_CACHE_SLOTS - 1)];
	__u64 last = cpu->last_ns, spent = 0;

	if (slot->container.id == of.id && slot->container.generation == of.generation)
		spent = slot->thread_ns + (slot->receive_ns & received);
	if (cpu->current_.id == of.id && cpu->current_.generation == of.generation && now > last &&
	    (received || !cpu->receive))
		spent += now - last;
	return spent;
}

/* Without receive work, if `received` is 0; else all ones. */
__noinline __u64 container_time(__u32 id, __u64 now, __u64 received)
{
	struct fief_container *c = bpf_map_lookup_elem(&containers, &id);
	struct fief_ref of = {.id = id};
	__u64 spent;
	__u32 cpu;

	if (!c)
		return 0;
	of.generation = c->generation;
	spent = c->usage.thread_ns + (c->usage.receive_ns & received);
	bpf_for (cpu, 0, FIEF_MAX_CPUS) {
		struct fief_cpu *of_cpu = bpf_map_lookup_elem(&cpus, &cpu);

		if (!of_cpu)
			break;
		if (of_cpu->online)
			spent += spent_on_cpu(of_cpu, of, now, received);
	}
	return spent;
}

static __always_inline __u64 container_spent(__u32 id, __u64 now)
{
	return container_time(id, now, ~0ull);
}

__noinline __u32 cpus_charged(void)
{
	__u32 count = 0, cpu;

	bpf_for (cpu, 0, FIEF_MAX_CPUS) {
		struct fief_cpu *of_cpu = bpf_map_lookup_elem(&cpus, &cpu);

		if (!of_cpu)
			break;
		count += of_cpu->online & 1;
	}
	return count;
}

/* Receive work of all CPUs that found no container: packets that were dropped, or are for strangers. */
__noinline __u64 received_for_nobody(void)
{
	__u64 spent = 0;
	__u32 cpu;

	bpf_for (cpu, 0, FIEF_MAX_CPUS) {
		struct fief_cpu *of_cpu = bpf_map_lookup_elem(&cpus, &cpu);

		if (!of_cpu)
			break;
		spent += of_cpu->system_kind_ns[FIEF_SYSTEM_NET_RX] + of_cpu->system_kind_ns[FIEF_SYSTEM_NAPI] +
			 of_cpu->system_kind_ns[FIEF_SYSTEM_KSOFTIRQD] + of_cpu->system_kind_ns[FIEF_SYSTEM_HARDIRQ];
	}
	return spent;
}
