/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Climbs: threads that wait in a line above their container's, which gets no number (numbers.bpf.h), and the limits between.
 *
 * Problem: a search looks at the limits of a line and of what is above. An application says how many containers it has, so it could choose
 * which of them get no number, and so have no limit.
 * How: what such a thread does is the line's use of the CPU, and counts against the limits of its own container. While one of these is used up the
 * thread waits in no line, but in a queue for such threads, in the order in which their limits are to have some left. The beat
 * then lets it in for a moment (leaves.bpf.h), and it waits anew. One that begins to run while it is held gives the CPU back.
 * Limits: HELD_SEEN threads at a beat. One whose limit is used up as it runs goes on to the next tick, as all others do.
 */
#pragma once

#include "limit.bpf.h"
#include "thread.bpf.h"
#include "turns.bpf.h"

#define HELD_LOOK_NS (5 * PERIOD_NS) /* at the latest it is asked again then: its limit may be another one */

/* Whether the thread, which waits in this line or runs by its turn, has climbed there. */
static __always_inline bool has_climbed(const struct sched_waiting *w, __u32 line)
{
	return !w->foreign && line != w->bound;
}

/* The same, where a limit below the line is used up, or above. */
static __always_inline bool climber_is_held(const struct sched_waiting *w, __u32 line)
{
	return has_climbed(w, line) && is_held(w->bound);
}

/* Of a thread that has begun to wait: whether it is held, and waits apart. */
static __always_inline bool climber_waits(struct task_struct *p, struct sched_waiting *w, __u64 now, __u64 flags)
{
	__u64 until;

	if (!w || !w->container || !has_climbed(w, w->container - 1))
		return false;
	budgets_settle(w->bound, now, true); /* no search comes to them */
	until = held_until(w->bound, now);
	if (!until)
		return false;
	if (until - now > HELD_LOOK_NS)
		until = now + HELD_LOOK_NS;
	wait_end(w);
	scx_bpf_dsq_insert_vtime(p, DSQ(QUEUE_HELD), SLICE_NS, until, flags);
	return true;
}
