/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Line: what a policy knows, and what is told of a thread in it, as numbers alone.
 *
 * A policy is one file in policies/ with these functions, and its name in policy.bpf.h (an include and a row):
 *
 *   NAME_begin(l, t, now)  a thread is new in the line: the container's policy was exchanged, or the thread came to the container
 *   NAME_place(l, t, now)  it waits from now on: sets `at`, its place; who has the least goes first. `slept`: it has just woken up
 *   NAME_ran(l, t, ns)     it had so much of the CPU
 *   NAME_yields(l, t)      it lets the others go first (sched_yield)
 *
 * A thread that runs keeps the CPU at the end of its slice if its place is before the first one's that waits. What a policy keeps
 * of a thread is `at` and `left`; of the line it keeps nothing: `clock` is the furthest place that has run.
 *
 * It needs its word elsewhere too: a number in enum fief_policy, and FIEF_POLICIES (abi/container.h); for policies CpuPolicy (fief-policy,
 * cpu.rs), CPU_POLICIES (vocabulary.rs) and the sentence about them (vocabulary/policy.rs); policy_number (fief-control, schedule.rs); for
 * applications Policy (fief, attributes.rs); and Policy in tests/order/src/line.rs, over which the suite of all policies runs.
 */
#pragma once

#include "order.h"

struct sched_line {
	__u64 clock;	 /* the furthest place that has run; it begins with the time */
	__u64 period_ns; /* of the container's attributes */
	__u64 budget_ns;
	__u64 furthest; /* place that was given, as the kernel's queue knows it */
	__u64 shift;	/* from a policy's places to those: whoever waits by a former policy goes first */
	__u32 policy;	/* enum fief_policy, or of an object */
	__u32 epoch;	/* counts the policies */
	__u32 container;
	__u32 generation;
	__u32 instance; /* of the object */
	__u32 pad;
};

struct line_thread {
	__u64 at;
	__s64 left;   /* of its budget */
	__u32 weight; /* by its nice value, 100 for 0 */
	__u32 random;
	__u32 slept;
	__s32 pid;
};

/* Time as the thread's weight counts it: real time for one of nice 0. */
static inline __u64 by_weight(const struct line_thread *t, __u64 ns)
{
	return t->weight == 100 ? ns : stride_weight(ns, t->weight) / 100;
}
