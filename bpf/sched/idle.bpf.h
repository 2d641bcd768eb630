/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Idle: CPUs that found nothing to run, and threads that they could not see as they looked.
 *
 * Problem: the kernel tells who may be woken only once a CPU is idle, and inserts a thread in its queue only after enqueue has returned. A thread
 * that comes to wait while a CPU looks for one in vain may find no idle CPU, and the CPU no thread: it would wait until something else happens.
 * How: a CPU that found nothing says so first, and then looks whether somebody has come to wait since it began to look; a thread is counted
 * first, and then it is looked whether a CPU has said so. One of both sees the other. The thread's side kicks the CPU, which the kernel passes on
 * once the thread is inserted, and not before the CPU has chosen. The CPU's side chooses once more, and from then on it asks of each line that it
 * chose in vain whether its queue is empty: then a thread of it is under way, to its queue or to a CPU, and the CPU chooses again, MISSES_MOST
 * times in a row. Then it gives up, since a thread that is under way to a CPU that another class has may be so for long. The beat looks at that
 * queue from then on, and has the CPU choose again once a thread is there.
 * It also spares who comes to wait the kernel's search for an idle CPU, where none is.
 * Limits: where there are several such lines, or somebody came to wait at the last choice, the beat has the CPU choose again without a look. Where a
 * thread of another class runs on a CPU that said so, it counts as idle, and who comes to wait asks the kernel.
 */
#pragma once

#include "front.bpf.h"

#define MISSES_MOST 8
#define SEVERAL	    (~0u) /* lines */

/* The CPU says that it found nothing. A barrier: what is looked at afterwards was not read before. */
static __always_inline void idle_begins(struct sched_machine *m, struct sched_place *there)
{
	if (!__sync_lock_test_and_set(&there->idle, 1))
		__sync_fetch_and_add(&m->idle, 1);
}

static __always_inline void idle_ends(struct sched_machine *m, struct sched_place *there)
{
	if (there->idle && __sync_lock_test_and_set(&there->idle, 0))
		__sync_fetch_and_add(&m->idle, -1);
}

/* A CPU begins to choose, or a search that goes on with several choices, and has counted who may go on there. */
static __always_inline void idle_notes(struct sched_machine *m, struct sched_place *here)
{
	here->counts = m->counts;
	here->missed = 0;
}

/* It chose a line in vain. Where the beat looks at that one, and nobody has come to it since, it need not choose again. */
static __always_inline void idle_misses(struct sched_place *here, __u32 queue)
{
	if (!here->misses || scx_bpf_dsq_nr_queued(DSQ(queue)) ||
	    (here->watched == queue + 1 && here->watched_arrivals == here->arrivals))
		return;
	here->missed = here->missed && here->missed != queue + 1 ? SEVERAL : queue + 1;
	here->missed_arrivals = here->arrivals;
}

/* It gives up. `others`: somebody else came to wait. */
static __always_inline void idle_watches(struct sched_place *here, bool others)
{
	if (others || (here->watched && here->watched != here->missed))
		here->watched = SEVERAL;
	else
		here->watched = here->missed;
	here->watched_arrivals = here->missed_arrivals;
}

/* A period has passed: the CPUs choose again for which there is a thread now, or that are to do so in any case. */
static __always_inline void idle_beats(struct sched_machine *m)
{
	__u32 cpu;

	bpf_for (cpu, 0, cpu_count) {
		struct sched_place *there = place_in(m, cpu);
		__u32 watched;

		watched = *(volatile __u32 *)&there->watched;
		if (!watched || !there->idle || (watched != SEVERAL && !scx_bpf_dsq_nr_queued(DSQ(watched - 1))))
			continue;
		there->watched = 0;
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
}

/* It found nothing. Whether it is to choose once more at once. */
static __always_inline bool idle_again(struct sched_machine *m, struct sched_place *here)
{
	bool others, again;
	__u64 front;

	idle_begins(m, here);
	front = front_seen(m);
	others = is_sign(front) || *(volatile __u64 *)&m->counts != here->counts;
	again = others || (front == FRONT_LINES && (!here->misses || here->missed));
	here->misses = again ? here->misses + 1 : 0;
	if (here->misses <= MISSES_MOST)
		return again;
	here->misses = 0;
	idle_watches(here, others);
	return false;
}

/* Whether a CPU has said that it found nothing. A barrier stands before it, with which who asks has come to wait. */
static __always_inline bool any_is_idle(const struct sched_machine *m)
{
	return *(const volatile __u32 *)&m->idle;
}

/* Wakes an idle CPU for a thread that has come to wait, or those that may be about to be idle. Whether there is an idle one. */
static __always_inline bool idle_wakes(struct task_struct *p)
{
	s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	__u32 cpu;

	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return true;
	}
	for (cpu = 0; cpu < cpu_count && can_loop; cpu++) {
		if (place_at(cpu)->idle && bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	return false;
}
