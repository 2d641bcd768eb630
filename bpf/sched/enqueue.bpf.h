/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Enqueue: where a thread that wakes up waits, and whom it preempts.
 *
 * How: on a CPU that is idle it runs at once. Where nobody else waits it is at the front, if nothing has to be asked of it (plain.bpf.h). Else
 * it waits in the queue of the container that it is scheduled for, at its place there, or of one above, as whose thread it then waits
 * (numbers.bpf.h, climbs.bpf.h). It wakes an idle CPU, or stops a thread of a worse rank than its own, or one that it overtakes; not where
 * it may leave its own CPU for none. One that waits and is changed (its nice value, its CPUs, its cgroup) comes here again.
 * Limits: a thread of a held container waits without waking anybody.
 */
#pragma once

#include "climbs.bpf.h"
#include "combined.bpf.h"
#include "floor.bpf.h"
#include "idle.bpf.h"
#include "kthread.bpf.h"
#include "leaves.bpf.h"
#include "limit.bpf.h"
#include "plain.bpf.h"
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
		struct sched_machine *m = machine_get();
		struct sched_waiting *w = waiting_of(p);
		__u32 id = allocation_of(p, w);

		if (!limits_allow(id))
			return cpu;
		if (w) {
			wait_woken(m, w);
			w->since_ns = 0;
			w->ranked = 0;
			w->thread.slept = 1;
			w->thread.pid = p->pid; /* it may have become another's (exec) */
			plain_ran(w, p->se.sum_exec_runtime);
			place_take(id, w, p->scx.weight, bpf_ktime_get_ns());
		}
		slice = slice_of(id, w);
	}
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice, 0);
	return cpu;
}

/* Whether the thread that runs there gives its CPU to one of that rank in the container's line, where `edf` that has deadlines. */
static __always_inline bool is_worse(const struct sched_place *there, __u32 rank, bool edf, __u32 id,
				     const struct sched_waiting *w)
{
	return there->rank < rank || (edf && w && is_overtaken(there, id, w));
}

/* Takes a CPU for a thread that waits, from one that is worse. Whether it did, or need not look further. */
static __always_inline bool preempts(struct sched_place *there, __u32 cpu, struct task_struct *p, __u32 rank)
{
	if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return false;
	if (is_stuck(p))
		return true; /* its CPU has chosen another one already, and chooses again after that one */
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	/* the next one that is better than what runs there looks elsewhere */
	if (there->rank < rank)
		there->rank = rank;
	state_count(preempted);
	return true;
}

/* Whom a thread of that rank wakes or preempts that waits in the container's line. `edf`: it is one in which deadlines are held. */
static __always_inline void waiter_calls(struct sched_machine *m, struct task_struct *p, const struct sched_waiting *w,
					 __u32 id, __u32 rank, bool edf, u64 flags)
{
	__u32 cpu;

	if (any_is_idle(m) && !is_stuck(p) && idle_wakes(p))
		return;
	if (flags & SCX_ENQ_LAST) {
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), 0);
		return;
	}
	if (p->nr_cpus_allowed == 1) { /* on all others it would be asked in vain */
		cpu = cpu_of(p);
		if (is_worse(place_in(m, cpu), rank, edf, id, w))
			preempts(place_in(m, cpu), cpu, p, rank);
		return;
	}
	for (cpu = 0; cpu < cpu_count && can_loop; cpu++) {
		struct sched_place *there = place_in(m, cpu);

		if (is_worse(there, rank, edf, id, w) && preempts(there, cpu, p, rank))
			break;
	}
}

/* A thread comes to wait in a line. */
static __noinline int line_waits(struct sched_machine *m, struct task_struct *p, struct sched_waiting *w, u64 flags)
{
	__u64 place = bpf_ktime_get_ns(), slice = SLICE_NS;
	__u32 id = allocation_of(p, w), queue, rank;
	struct sched_node *n;

	if (w && flags & SCX_ENQ_WAKEUP) {
		w->since_ns = 0;
		w->thread.slept = 1;
	}
	if (w)
		w->unsettled_ns = 0;
	queue = wait_begin(w, id, place);
	if (queue == QUEUE_LATE) {
		late_waits(p, flags);
		return 0;
	}
	if (climber_waits(p, w, place, flags))
		return 0;
	if (w && w->container)
		id = w->container - 1;
	if (w && queue != QUEUE_ROOT) {
		w->thread.pid = p->pid;
		plain_ran(w, p->se.sum_exec_runtime);
		place = place_take(id, w, p->scx.weight, place);
		slice = slice_of(id, w);
	}
	scx_bpf_dsq_insert_vtime(p, DSQ(queue), slice, place, flags);
	n = w ? node_at(id) : NULL;
	if (n && !plain_walked(m, n, w->allocation.generation))
		plain_walks(n, id, w->allocation.generation);
	rank = n && plain_walked(m, n, w->allocation.generation) ? n->walked_rank : rank_unheld(id);
	if (rank == RANK_HELD) {
		/* it may have slept since its budget was last looked at */
		budgets_settle(id, bpf_ktime_get_ns(), true);
		rank = rank_unheld(id);
	}
	if (w)
		w->ranked = rank == RANK_HELD ? 0 : rank + 1;
	if (rank == RANK_HELD)
		return 0;
	waiter_calls(m, p, w, id, rank, n && n->line.policy == FIEF_POLICY_EDF, flags);
	return 0;
}

/*
 * One that has waited too long was changed: it is let in as it was to be, not behind those that have waited for less. It is in no line, as one
 * that cannot be counted.
 */
static __always_inline void late_again(struct sched_machine *m, struct task_struct *p, const struct sched_waiting *w,
				       u64 flags)
{
	late_inserts(p, w->since_ns, flags);
	__sync_lock_test_and_set(&m->late, 1);
	if (any_is_idle(m) && !is_stuck(p))
		idle_wakes(p);
}

static __always_inline void enqueue(struct task_struct *p, u64 flags)
{
	struct sched_machine *m = machine_get();
	struct sched_waiting *w;
	__u64 place;
	__u32 rank;

	if (p->flags & PF_KTHREAD) {
		kthread_waits(p, flags);
		return;
	}
	w = waiting_of(p);
	if (w && flags & SCX_ENQ_WAKEUP) {
		wait_woken(m, w);
	} else {
		wait_end(w);
		if (waits_too_long(w, m->now_ns)) {
			late_again(m, p, w, flags);
			return;
		}
		/* it was changed, and goes on to wait: at the front it would begin to; or the CPU has nobody else */
		if (!w || w->since_ns || flags & SCX_ENQ_LAST) {
			line_waits(m, p, w, flags);
			return;
		}
	}
	if (front_seen(m) == FRONT_NOBODY && plain_waits(m, p, w, &place, &rank)) {
		scx_bpf_dsq_insert_vtime(p, DSQ(QUEUE_FRONT), SLICE_NS, place, flags);
		waiter_calls(m, p, w, FIEF_ROOT, rank, false, flags);
		return;
	}
	line_waits(m, p, w, flags);
}
