/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Enqueue: where a thread that wakes up waits, and whom it preempts.
 *
 * How: on a CPU that is idle it runs at once. Else it waits in the queue of the container that it is scheduled for, at its place there, or of
 * one above, as whose thread it then waits (numbers.bpf.h, climbs.bpf.h). It wakes an idle CPU, or stops a thread of a worse rank than its own, or
 * one that it overtakes; not where it may leave its own CPU for none.
 * Limits: a thread of a held container waits without waking anybody.
 */
#pragma once

#include "climbs.bpf.h"
#include "combined.bpf.h"
#include "floor.bpf.h"
#include "kthread.bpf.h"
#include "leaves.bpf.h"
#include "limit.bpf.h"
#include "policy.bpf.h"
#include "stuck.bpf.h"

static __always_inline s32 wakeup_place(struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	/* of a waker that is about to sleep it would take the CPU for idle: two that wake each other would keep all others from that */
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags & ~(u64)SCX_WAKE_SYNC, &idle);
	__u64 slice = SLICE_NS;

	if (!idle)
		return cpu;
	if (!(p->flags & PF_KTHREAD)) {
		struct sched_waiting *w = waiting_of(p);
		__u32 id = allocation_of(p, w);

		if (!limits_allow(id))
			return cpu;
		if (w) {
			w->thread.pid = p->pid; /* it may have become another's (exec) */
			w->thread.slept = 1;
			place_take(id, w, p->scx.weight, bpf_ktime_get_ns());
		}
		slice = slice_of(id, w);
	}
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice, 0);
	return cpu;
}

static __always_inline void enqueue(struct task_struct *p, u64 flags)
{
	struct sched_waiting *w = waiting_of(p);
	__u64 place = bpf_ktime_get_ns(), slice = SLICE_NS;
	__u32 id, queue, rank, cpu;
	bool stuck;
	s32 idle;

	if (p->flags & PF_KTHREAD) {
		kthread_waits(p, flags);
		return;
	}
	wait_end(w);
	if (w && flags & SCX_ENQ_WAKEUP)
		w->thread.slept = 1;
	id = allocation_of(p, w);
	queue = wait_begin(w, id, place);
	if (queue == QUEUE_LATE) {
		late_waits(p, flags);
		return;
	}
	if (climber_waits(p, w, place, flags))
		return;
	if (w && w->container)
		id = w->container - 1;
	if (w && queue != QUEUE_ROOT) {
		w->thread.pid = p->pid;
		place = place_take(id, w, p->scx.weight, place);
		slice = slice_of(id, w);
	}
	scx_bpf_dsq_insert_vtime(p, DSQ(queue), slice, place, flags);
	rank = rank_unheld(id);
	if (rank == RANK_HELD) {
		budgets_settle(id, bpf_ktime_get_ns()); /* it may have slept since its budget was last looked at */
		rank = rank_unheld(id);
	}
	if (w)
		w->ranked = rank == RANK_HELD ? 0 : rank + 1;
	if (rank == RANK_HELD)
		return;
	stuck = is_stuck(p);
	idle = stuck ? -ENOENT : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return;
	}
	if (flags & SCX_ENQ_LAST) {
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), 0);
		return;
	}
	if (stuck)
		return; /* its CPU has chosen another one already, and chooses again after that one */
	for (cpu = 0; cpu < cpu_count && can_loop; cpu++) {
		struct sched_place *there = place_at(cpu);

		if (!there)
			break;
		if ((there->rank < rank || is_overtaken(there, id, w)) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
			/* the next one that is better than what runs there looks elsewhere */
			if (there->rank < rank)
				there->rank = rank;
			state_count(preempted);
			break;
		}
	}
}
