/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Fits: whether a line may have a thread for the CPU that chooses.
 *
 * Problem: a line whose threads are all bound to other CPUs is chosen before those that are less behind it all the same, and in vain. With n such
 * lines a choice looks at all lines n times. So it is with lines whose threads have left them to be let in for a moment (floor).
 * How: where a queue had all threads of its line, and none that this CPU could take, the line is marked with a bit for the CPU, and passed
 * over. The next thread that comes to it takes the marks off, as one does whose CPUs are changed. Those that have left are counted beside those that
 * wait.
 * Limits: CHOOSERS CPUs. A mark is made by the CPU that looks further (dispatch).
 */
#pragma once

#include "state.bpf.h"

static __always_inline __u64 chooser_of(__u32 cpu)
{
	return cpu < CHOOSERS ? 1ull << (cpu & (CHOOSERS - 1)) : 0;
}

/* Whether a thread of the container's own may be found in its queue. The lock is held. */
static __always_inline bool own_fits(const struct sched_machine *m, const struct sched_node *n)
{
	return (__s32)(n->queued - *(const volatile __u32 *)&n->late) > 0 && !(n->misfits & m->chooser);
}

/* A thread comes to the line. The lock is held. */
static __always_inline void fits_again(struct sched_node *n)
{
	n->arrivals++;
	n->misfits = 0;
}

/* The line was chosen, by a CPU that looks further or not. The lock is held. */
static __always_inline void fits_asks(const struct sched_machine *m, struct sched_place *here,
				      const struct sched_node *n)
{
	here->queued = m->search && n ? n->queued : 0;
	here->arrivals = n ? n->arrivals : 0;
}

/* Before its queue is asked: whether all that wait are there. */
static __always_inline void fits_counts(struct sched_place *here, __u32 queue)
{
	if (here->queued && scx_bpf_dsq_nr_queued(DSQ(queue)) != (__s32)here->queued)
		here->queued = 0;
}

/* None could be taken from it. */
static __always_inline void fits_not(struct sched_machine *m, struct sched_place *here, __u32 id, __u32 cpu)
{
	struct sched_node *n = node_at(id);

	if (!n || !here->queued || !machine_lock())
		return;
	if (n->arrivals == here->arrivals)
		n->misfits |= chooser_of(cpu);
	machine_unlock(m);
}
