/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Alone: the next thread, where those of one container alone wait.
 *
 * Problem: most CPUs that are given away have one taker: a server that wakes up on a machine that is not full. Pick looks for it from the
 * root down, through a list on each level, to find what was known when the thread began to wait.
 * How: the containers that have waiting threads of their own are counted. One that comes when there is none is in no list: only its
 * number is noted. The way leads from it up to the root: on each level it is the only child to choose, so it is settled, the clocks
 * follow it, and nothing is compared. What the thread that leaves the CPU has run for is settled at the next choice. Where another
 * one comes, or pick is asked, it comes into the lists as the others do.
 * Limits: where a container on the way has a limit, or its waiting threads may not run on this CPU, pick is asked.
 */
#pragma once

#include "pick.bpf.h"

/* A child that is chosen alone is no more than a lag behind; the clock follows it, however far it is ahead. */
static __always_inline void alone_goes(__u64 *at, __u64 *clock, __u64 part, bool weight)
{
	if (!is_before(*at, *clock)) {
		*clock = *at;
		return;
	}
	__u64 least = *clock - (weight ? stride_weight(LAG_NS, part) : stride(LAG_NS, part));

	if (is_before(*at, least))
		*at = least;
}

static __always_inline void group_goes(struct sched_node *n, __u32 priority, __u64 rest)
{
	__u64 *at = group_of(n, priority);

	alone_goes(at, clock_of(n, priority, CLOCK_SHARES, *at), rest, false);
}

/* The container whose threads alone wait, or PICK_AGAIN. The lock is held. */
__noinline int alone_pick(void)
{
	struct sched_machine *m = machine_get();
	int found = PICK_AGAIN, level;
	struct fief_container *c;
	struct sched_node *n;
	__u32 id, alone;
	__u64 rest;

	if (!m->alone)
		return PICK_AGAIN;
	alone = id = m->alone - 1;
	n = node_at(id);
	c = container_at(id);
	if (!n || !c)
		return PICK_AGAIN;
	rest = rest_part(id, c);
	own_settle(n, c, rest);
	group_goes(n, OWN_PRIORITY, rest);
	alone_goes(&n->own_at, clock_of(n, OWN_PRIORITY, CLOCK_REST, n->own_at), OWN_WEIGHT, true);
	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *pc;
		struct fief_attributes *a;
		struct sched_node *p;
		__u32 up;

		if (id == FIEF_ROOT) {
			found = alone;
			break;
		}
		a = attributes_of(c);
		up = c->parent.id;
		pc = container_at(up);
		p = pc ? node_get(up, pc) : NULL;
		if (!p || a->limit_ppm)
			break;
		rest = rest_part(up, pc);
		node_settle(n, c, a, p, rest);
		if (a->share_ppm) {
			alone_goes(&n->at, clock_of(p, a->priority, CLOCK_SHARES, n->at), a->share_ppm, false);
		} else {
			group_goes(p, a->priority, rest);
			alone_goes(&n->at, clock_of(p, a->priority, CLOCK_REST, n->at), a->weight, true);
		}
		id = up;
		n = p;
		c = pc;
	}
	return found;
}
