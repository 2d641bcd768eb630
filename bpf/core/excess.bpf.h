/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Excess: receive work above a limit is discarded once the packet's container is known.
 *
 * Problem: no scheduler stops a softirq. A flood of packets for a limited container takes the CPU from all others, and what is
 * received counts against the limit, so that the container's threads never get to what has come.
 * How: while the scheduler is on, receive work is held against half of each limit on the way up; the other half is the threads' own.
 * Each nanosecond of it moves a time ahead (virtual scheduling, ITU-T I.371). While that time is more than EXCESS_NS away, packets
 * are dropped by cgroup_skb/ingress, before they are queued and anybody is woken up. What dropping takes counts against the limit too,
 * but not against that half: else a flood of which each packet is dropped would let none pass.
 * Limits: what comes before a socket is found (driver, IP) is done all the same, and where that alone exceeds the limit, so does the
 * container. Packets of a container without threads of managed units are not seen.
 */
#pragma once

#include "loop.bpf.h"

#define EXCESS_NS 100000000ull

const volatile __u32 online_count = 1; /* CPUs, by which limits are counted */

/* `ns` of receive work, up to `now`, of a container and all above it. */
static __noinline int excess_count(struct fief_ref to, __u64 ns, __u64 now)
{
	struct fief_container *c = container_get(to);
	__u64 part, until;
	int i;

	for (i = 0; i < FIEF_MAX_DEPTH && can_loop; i++) {
		if (!c || to.id == FIEF_ROOT)
			break;
		part = (__u64)attributes_of(c)->limit_ppm * online_count / 2; /* millionths of a CPU */
		if (part) {
			until = c->received_until_ns;
			if ((__s64)(until - now) < 0)
				__sync_val_compare_and_swap(&c->received_until_ns, until, now);
			__sync_fetch_and_add(&c->received_until_ns, ns * 1000000 / part);
		}
		to = c->parent;
		c = container_get(to);
	}
	return 0;
}

/* Whether a packet of the container, by ref_word(), is discarded now. */
__noinline int excess_discards(__u64 whose, __u32 packets)
{
	struct fief_ref to = ref_read(whose);
	struct fief_container *c = container_get(to);
	__u64 now = bpf_ktime_get_ns();
	int i;

	for (i = 0; i < FIEF_MAX_DEPTH && can_loop; i++) {
		if (!c || to.id == FIEF_ROOT)
			break;
		if (attributes_of(c)->limit_ppm && (__s64)(c->received_until_ns - now) > (__s64)EXCESS_NS) {
			__sync_fetch_and_add(&c->discarded, packets);
			return 1;
		}
		to = c->parent;
		c = container_get(to);
	}
	return 0;
}
