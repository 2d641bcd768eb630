/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Idle: whether the receiving CPU has time left.
 *
 * Problem: answering more SYNs than a budget allows costs nothing while the CPU would be idle. It costs the server when the
 * server wants the CPU, and idle time of other CPUs says nothing about this one.
 * How: the idle time that this CPU was charged, read at most once in FIEF_LOAD_LOOK_NS. The CPU has time left if it was idle
 * for a part in SPARE_PART of that time.
 * Limits: the answers' own time is no longer idle, so they end where SPARE_PART begins. A CPU whose idle time the charge
 * machine wrote back in between counts as busy until the next look.
 */
#pragma once

#include "maps/cpus.bpf.h"

#define SPARE_PART 4

struct idle_look {
	__u64 looked_ns;
	__u64 idle_ns; /* of this CPU until then */
	__u32 spare;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct idle_look);
} idle_looks SEC(".maps");

static __noinline bool cpu_spare(__u64 now)
{
	__u32 zero = 0, cpu = bpf_get_smp_processor_id();
	struct idle_look *look = bpf_map_lookup_elem(&idle_looks, &zero);
	struct fief_cpu *of_cpu = bpf_map_lookup_elem(&cpus, &cpu);
	struct fief_cache_slot *slot;
	__u64 passed, idle, was;

	if (!look || !of_cpu)
		return false;
	passed = now - look->looked_ns;
	/* a look that is said to come is not due: so tests hold it */
	if ((__s64)passed < (__s64)FIEF_LOAD_LOOK_NS)
		return look->spare;
	slot = &of_cpu->cache[FIEF_IDLE & (FIEF_CACHE_SLOTS - 1)];
	idle = slot->container.id == FIEF_IDLE ? slot->thread_ns : 0;
	was = look->idle_ns;
	look->idle_ns = idle;
	look->looked_ns = now;
	look->spare = idle > was && (idle - was) * SPARE_PART >= passed;
	return look->spare;
}
