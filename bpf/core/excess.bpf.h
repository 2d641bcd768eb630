/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Excess: receive work above a limit is discarded once the packet's container is known.
 *
 * Problem: no scheduler stops a softirq. A flood of packets for a limited container takes the CPU from all others, and what is
 * received counts against the limit, so that the container's threads never get to what has come.
 * How: while the scheduler is on, receive work is held against each limit on the way up. Each nanosecond of it moves a time ahead
 * (virtual scheduling, ITU-T I.371), for half of the limit twice as far as for all of it. While the first of these times is more than EXCESS_NS
 * away, and threads were held by the limit a moment ago or the second one is away too, packets are dropped by cgroup_skb/ingress, before they
 * are queued and anybody is woken up. Of several containers below a limit those that are within their equal part of the half keep their packets.
 * What dropping takes counts against the limit too, but moves no time: else a flood of which each packet is dropped would let none pass.
 * Limits: what comes before a socket is found (driver, IP) is done all the same, and where that alone exceeds the limit, so does the
 * container. Packets of a container without threads of managed units are not seen. Bytes that the door has acknowledged pass.
 */
#pragma once

#include "loop.bpf.h"

#define EXCESS_NS 100000000ull

static __always_inline bool is_ahead(__u64 until, __u64 now)
{
	return (__s64)(until - now) > (__s64)EXCESS_NS;
}

/* No CPU that stood still for long, with a packet in hand, takes the time far away. */
static __always_inline void time_move(__u64 *until, __u64 ns, __u64 part, __u64 now)
{
	__u64 was = *(volatile __u64 *)until, step = ns * 1000000 / (part ? part : 1);

	if ((__s64)(was - now) < 0)
		__sync_val_compare_and_swap(until, was, now);
	if (step > 2 * EXCESS_NS)
		step = 2 * EXCESS_NS;
	if ((__s64)(was - now) < (__s64)(2 * EXCESS_NS))
		__sync_fetch_and_add(until, step);
}

/* `ns` of receive work, up to `now`, of a container and all above it. */
static __noinline int excess_count(struct fief_ref to, __u64 ns, __u64 now)
{
	struct fief_container *c = container_get(to), *below = NULL;
	struct fief_cpu *cs = this_cpu();

	/* to the root, without a count, as in counted_up() */
	while (can_loop) {
		__u64 limit, children; /* millionths of a CPU */

		if (!c || !cs || to.id == FIEF_ROOT)
			break;
		limit = (__u64)attributes_of(c)->limit_ppm * cs->limit_cpus;
		if (limit) {
			time_move(&c->received_half_ns, ns, limit / 2, now);
			time_move(&c->received_all_ns, ns, limit, now);
			children = c->refs / FIEF_CHILD;
			time_move(below ? &below->received_part_ns : &c->received_own_ns, ns,
				  limit / 2 / (children + 1), now);
		}
		below = c;
		to = c->parent;
		c = container_get(to);
	}
	return 0;
}

/* Whether a packet of the container, by ref_word(), is discarded now. */
__noinline int excess_discards(__u64 whose, __u32 packets)
{
	struct fief_ref to = ref_read(whose);
	struct fief_container *c = container_get(to), *own = c, *below = NULL;
	__u64 now = bpf_ktime_get_ns();

	/* to the root, as in counted_up() */
	while (can_loop) {
		if (!c || !own || to.id == FIEF_ROOT)
			break;
		if (attributes_of(c)->limit_ppm && is_ahead(c->received_half_ns, now) &&
		    (is_ahead(c->received_all_ns, now) || now - c->held_ns < EXCESS_NS) &&
		    is_ahead(below ? below->received_part_ns : c->received_own_ns, now)) {
			__sync_fetch_and_add(&own->discarded, packets);
			return 1;
		}
		below = c;
		to = c->parent;
		c = container_get(to);
	}
	return 0;
}
