/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Fair: each thread has a part by its nice value.
 *
 * How: a thread's place advances by what it had, the faster the less its weight is. A thread that slept is at most LAG behind the others, so
 * that it saves nothing up; a new one stands where it had run for a slice, so that ever new threads keep nobody waiting.
 * Limits: on several CPUs the line is where its furthest thread is. Where threads of one container run alone on some CPUs and share
 * others, nice values count less among those that share.
 */
#pragma once

#include "../line.h"

static __always_inline void fair_begin(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	t->at = l->clock + by_weight(t, SLICE_NS);
}

static __always_inline void fair_place(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	t->at = within(t->at, l->clock, LAG_NS, by_weight(t, LEAD_NS));
}

static __always_inline void fair_ran(const struct sched_line *l, struct line_thread *t, __u64 ns)
{
	t->at += by_weight(t, ns);
}

static __always_inline void fair_yields(const struct sched_line *l, struct line_thread *t)
{
}
