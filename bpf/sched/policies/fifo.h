/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* First in, first out: the thread that woke up first goes first, and goes on until it sleeps. */
#pragma once

#include "../line.h"

static inline void fifo_begin(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	t->at = now;
}

static inline void fifo_place(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	if (t->slept)
		t->at = now;
}

static inline void fifo_ran(const struct sched_line *l, struct line_thread *t, __u64 ns)
{
}

static inline void fifo_yields(const struct sched_line *l, struct line_thread *t)
{
	t->slept = 1; /* the last from now on */
}
