/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Clocks: where the children of a container are, by priority.
 *
 * Problem: a child that was away is no more than a lag behind its siblings. What a better one used is no measure for that: beside it the
 * others would all be too far behind, and the lightest, whose lag is longest, would go first.
 * How: each priority has a clock of its own, which follows those of it that are chosen, at the place that the priority's hash gives. The
 * first one of a priority sets it.
 * Limits: of two priorities with the same place the one that was looked at last has it, and its siblings begin anew from there.
 */
#pragma once

#include "state.bpf.h"

/* Has places of their own for what policies use: 0, 1, 2, 3, tens and hundreds. */
#define CLOCK_HASH 56607

static __always_inline __u32 clock_place(__u32 priority, __u32 which)
{
	return which * CLOCKS + ((__u32)(priority * CLOCK_HASH) >> 13 & (CLOCKS - 1));
}

/* The clock of a priority's children; one that is not known stands at `at` from now on. The lock is held. */
static __always_inline __u64 *clock_of(struct sched_node *n, __u32 priority, __u32 which, __u64 at)
{
	struct sched_clock *clock = &n->clocks[clock_place(priority, which)];

	if (clock->of != priority + 1) {
		clock->of = priority + 1;
		clock->at = at;
	}
	return &clock->at;
}

/* The same for who only asks. */
static __always_inline __u64 clock_seen(const struct sched_node *n, __u32 priority, __u32 which, __u64 at)
{
	const struct sched_clock *clock = &n->clocks[clock_place(priority, which)];

	return clock->of == priority + 1 ? clock->at : at;
}
