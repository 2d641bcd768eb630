/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Clocks: where the children of a container are, by priority.
 *
 * Problem: a child that was away is no more than a lag behind its siblings. What a better one used is no measure for that: beside it the
 * others would all be too far behind, and the lightest, whose lag is longest, would go first.
 * How: each priority has a clock of its own, which follows those of it that are chosen. The first one of a priority sets it.
 * Limits: a container knows CLOCKS priorities among its children; where there are more, they take each other's.
 */
#pragma once

#include "state.bpf.h"

static __always_inline __u64 *clock_value(struct sched_clock *of, __u32 which)
{
	return which == CLOCK_SHARES ? &of->shares : &of->rest;
}

/* 1: it is the clock of that priority. */
static __always_inline __u64 is_clock_of(const struct sched_clock *of, __u32 priority)
{
	__u64 same = ((__u64)(of->priority ^ priority) - 1) >> 63, known = -(__u64)of->known >> 63;

	barrier_var(same);
	barrier_var(known);
	return same & known;
}

/* The place of a priority's clock, else CLOCKS. Without branches, which the verifier would follow in all combinations. */
static __always_inline __u32 clock_find(const struct sched_node *n, __u32 priority)
{
	__u64 at = CLOCKS;
	__u32 i;

	for (i = 0; i < CLOCKS; i++)
		at ^= (at ^ i) & -is_clock_of(&n->clocks[i], priority);
	return at;
}

/* A place that is of nobody; where there is none, somebody's. Likewise. */
static __always_inline __u32 clock_free(const struct sched_node *n, __u32 priority)
{
	__u64 at = priority & (CLOCKS - 1);
	__u32 i;

	for (i = 0; i < CLOCKS; i++) {
		__u64 free = ((__u64)n->clocks[i].known - 1) >> 63;

		barrier_var(free);
		at ^= (at ^ i) & -free;
	}
	return at;
}

/* The place of a priority's clock; one that is not known stands at `at` from now on. A function of its own to the verifier. */
__noinline __u32 clock_place(struct sched_node *n __arg_nonnull, __u32 priority, __u32 which, __u64 at)
{
	__u32 found = clock_find(n, priority), known;
	struct sched_clock *of;

	if (found == CLOCKS) {
		found = clock_free(n, priority);
		of = &n->clocks[found & (CLOCKS - 1)];
		of->priority = priority;
		of->known = 0;
	}
	found &= CLOCKS - 1;
	of = &n->clocks[found];
	known = of->known;
	if (!(known & which)) {
		of->known = known | which;
		*clock_value(of, which) = at;
	}
	return found;
}

/* The clock itself. The lock is held. */
static __always_inline __u64 *clock_of(struct sched_node *n, __u32 priority, __u32 which, __u64 at)
{
	return clock_value(&n->clocks[clock_place(n, priority, which, at) & (CLOCKS - 1)], which);
}

/* The same for who only asks. */
__noinline __u64 clock_seen(const struct sched_node *n __arg_nonnull, __u32 priority, __u32 which, __u64 at)
{
	__u32 found = clock_find(n, priority);
	const struct sched_clock *of = &n->clocks[found & (CLOCKS - 1)];

	if (found == CLOCKS || !(of->known & which))
		return at;
	return which == CLOCK_SHARES ? of->shares : of->rest;
}
