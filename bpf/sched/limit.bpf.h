/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Limit: a budget per period, one for all CPUs and all that is below the container.
 *
 * Problem: threads of the container run on several CPUs at once, and the kernel itself works for it (receiving); the clock that
 * stops a thread ticks coarser than a budget.
 * How: each period adds its quota; whatever is charged is taken off, and a debt is paid off by the periods to come. A
 * container whose budget is used up is passed over, and a running thread is stopped at its CPU's next tick.
 * Limits: over one period the use can exceed the quota by a tick of each CPU, and by a quota behind one in which a beat came late; over many
 * it does not.
 */
#pragma once

#include "order.h"

/* By which limits are counted. */
static __always_inline __u32 cpus_now(void)
{
	return machine_get()->cpus;
}

/* How far a child may be ahead of its siblings. */
static __always_inline __u64 lead_now(void)
{
	return lead_of(cpus_now());
}

/* The lock is held. */
static __always_inline bool budget_left(struct sched_node *n, __u32 limit_ppm, __u64 now)
{
	__u64 age = now - n->period_ns, periods;

	if (!n->period_ns)
		n->budget = 0; /* what was charged before there was a limit is no debt */
	/* another CPU may have begun a period since this one read the clock */
	if ((__s64)age >= (__s64)PERIOD_NS) {
		periods = n->period_ns ? age / PERIOD_NS : 1;
		n->budget = refilled(n->budget, quota_of(limit_ppm, cpus_now()), periods);
		n->period_ns = n->period_ns ? n->period_ns + periods * PERIOD_NS : now;
	}
	return n->budget > 0;
}

/* What is left of its budget, by what is known without the lock. */
static __always_inline __s64 budget_now(const struct sched_node *n, const struct fief_container *c)
{
	return n->budget - (__s64)c->charged_ns + c->unlimited_ns;
}

/* Whether a limit on the way up is used up, by what is known without the lock. */
__noinline int is_held(__u32 id)
{
	int held = 0, level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct sched_node *n;

		if (!c || id == FIEF_ROOT)
			break;
		n = node_at(id);
		if (!n)
			break;
		if (attributes_of(c)->limit_ppm && n->period_ns && budget_now(n, c) <= 0) {
			held = 1;
			break;
		}
		id = c->parent.id;
	}
	return held;
}

/* When no limit on the way up is used up any more, if nothing else is charged, by what is known without the lock; 0: none is. */
__noinline __u64 held_until(__u32 id, __u64 now)
{
	__u64 until = 0, at;
	int level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct sched_node *n = node_at(id);
		__u32 limit_ppm;
		__s64 left;

		if (!c || !n || id == FIEF_ROOT)
			break;
		limit_ppm = attributes_of(c)->limit_ppm;
		left = budget_now(n, c);
		if (limit_ppm && n->period_ns && left <= 0) {
			c->held_ns = now;
			at = n->period_ns + periods_until(left, quota_of(limit_ppm, cpus_now())) * PERIOD_NS;
			if (is_before(until, at))
				until = at;
		}
		id = c->parent.id;
	}
	if (until)
		state_count(held);
	return until;
}

/*
 * Whether its thread may have an idle CPU without a look at the tree: no limit on the way up is used up, or is still to begin with
 * such a look.
 */
__noinline int limits_allow(__u32 id)
{
	int allow = 1, level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct sched_node *n = node_at(id);

		if (!c || !n || id == FIEF_ROOT)
			break;
		if (attributes_of(c)->limit_ppm &&
		    (!n->period_ns || n->generation != c->generation || budget_now(n, c) <= 0)) {
			allow = 0;
			break;
		}
		id = c->parent.id;
	}
	return allow;
}

/*
 * Whether what runs in debt for a moment more could come to owe so much, to it or above it, that some would be forgiven: no more than
 * DEBT_MOST periods are paid off.
 */
__noinline int debt_is_full(__u32 id)
{
	int full = 0, level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct sched_node *n = node_at(id);
		__u32 limit_ppm;
		__s64 left;

		if (!c || !n || id == FIEF_ROOT)
			break;
		limit_ppm = attributes_of(c)->limit_ppm;
		left = budget_now(n, c);
		if (limit_ppm && n->period_ns && left <= 0 &&
		    DEBT_STEP_NS - left > quota_of(limit_ppm, cpus_now()) * DEBT_MOST) {
			full = 1;
			break;
		}
		id = c->parent.id;
	}
	return full;
}
