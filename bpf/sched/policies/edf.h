/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Earliest deadline first: each thread has a budget in each period, and goes before those whose period ends later.
 *
 * How: constant bandwidth (Abeni and Buttazzo, RTSS 1998). A thread that wakes up keeps its deadline if the rest of its budget
 * fits before it, and else begins a period. One that used up its budget goes on with that of the next period: it does not wait while
 * nobody else wants the CPU, and it holds up no thread that is within its own budget. Threads that ask for more than there is get
 * parts in proportion of budget to period.
 * Limits: a thread that had the CPU for itself is at most EDF_AHEAD periods ahead.
 */
#pragma once

#include "../line.h"

#define EDF_PERIOD_NS 100000000ull
#define EDF_BUDGET_NS 10000000ull
#define EDF_AHEAD     32

static inline __u64 edf_period(const struct sched_line *l)
{
	return l->period_ns ? l->period_ns : EDF_PERIOD_NS;
}

static inline __u64 edf_budget(const struct sched_line *l)
{
	__u64 budget = l->budget_ns ? l->budget_ns : EDF_BUDGET_NS, period = edf_period(l);

	return budget < period ? budget : period;
}

static inline void edf_begin(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	t->at = now + edf_period(l);
	t->left = edf_budget(l);
}

static inline void edf_place(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	__u64 period = edf_period(l), budget = edf_budget(l);
	__u64 left = t->left > 0 ? t->left : 0;

	if (t->left > (__s64)budget)
		t->left = budget;
	if (is_before(now + EDF_AHEAD * period, t->at))
		t->at = now + EDF_AHEAD * period;
	/* what more than there is made late is not owed: else all that wake up would wait for it */
	if (!t->slept && is_before(t->at, now))
		t->at = now;
	/* in microseconds, so that the products fit */
	if (t->slept &&
	    (!is_before(now, t->at) || left / 1000 * (period / 1000) > budget / 1000 * ((t->at - now) / 1000)))
		edf_begin(l, t, now);
}

static inline void edf_ran(const struct sched_line *l, struct line_thread *t, __u64 ns)
{
	__u64 period = edf_period(l), budget = edf_budget(l), periods;

	t->left -= ns;
	if (t->left > 0)
		return;
	periods = (__u64)-t->left / budget + 1;
	t->at += periods * period;
	t->left += periods * budget;
}

static inline void edf_yields(const struct sched_line *l, struct line_thread *t)
{
	t->left = 0;
}
