/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Clocks: where the children of a container are, by priority.
 *
 * Problem: a child that was away is no more than a lag behind its siblings. What a better one used is no measure for that: beside it the
 * others would all be too far behind, and the lightest, whose lag is longest, would go first. So it is with the children without a share,
 * which stand among the others as one.
 * How: each priority has a clock of its own, which follows those of it that are chosen, at the place that the priority's hash gives. The
 * first one that is chosen of a priority sets it.
 * Limits: of two priorities with the same place the one that was chosen last has it, and its siblings begin anew from there. What the
 * others of a priority without its place have together is not known until one of them is chosen.
 */
#pragma once

#include "state.bpf.h"

/* 0, 1, 2 and 3 have places of their own, and so have 0, 100, 200, 300, 400 and 500. */
#define CLOCK_HASH 56607

static __always_inline __u32 clock_place(__u32 priority, __u32 kind)
{
	return kind * CLOCKS + ((__u32)(priority * CLOCK_HASH) >> 13 & (CLOCKS - 1));
}

/* The clock of the priority that is chosen; one that is not known stands at `at` from now on. The lock is held. */
static __always_inline __u64 *clock_of(struct sched_node *n, __u32 priority, __u32 kind, __u64 at)
{
	__u32 place = clock_place(priority, kind);

	if (n->clocks_of[place] != priority + 1) {
		n->clocks_of[place] = priority + 1;
		n->clocks[place] = at;
	}
	return &n->clocks[place];
}

/* The same for who only asks. */
static __always_inline __u64 clock_seen(const struct sched_node *n, __u32 priority, __u32 kind, __u64 at)
{
	__u32 place = clock_place(priority, kind);

	return n->clocks_of[place] == priority + 1 ? n->clocks[place] : at;
}

/* Where all children without a share of the priority that is chosen are, as one. The lock is held. */
static __always_inline __u64 *group_of(struct sched_node *n, __u32 priority)
{
	return clock_of(n, priority, CLOCK_GROUP, clock_seen(n, priority, CLOCK_SHARES, 0));
}

static __always_inline __u64 group_seen(const struct sched_node *n, __u32 priority)
{
	return clock_seen(n, priority, CLOCK_GROUP, clock_seen(n, priority, CLOCK_SHARES, 0));
}

/* They had so much, chosen or not: who receives, or runs elsewhere, takes no place from those who are. The lock is held. */
static __always_inline void group_had(struct sched_node *n, __u32 priority, __u64 had)
{
	__u32 owner = n->clocks_of[clock_place(priority, CLOCK_GROUP)];

	if (!owner || owner == priority + 1)
		*group_of(n, priority) += had;
}
