/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Round robin: a slice each, in turn, whatever the nice value is. */
#pragma once

#include "../line.h"

static inline void rr_begin(const struct sched_line *l, struct line_thread *t, __u64 now)
{
}

static inline void rr_place(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	t->at = now;
}

static inline void rr_ran(const struct sched_line *l, struct line_thread *t, __u64 ns)
{
}

static inline void rr_yields(const struct sched_line *l, struct line_thread *t)
{
}
