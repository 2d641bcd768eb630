/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Run: what the scheduler keeps of a thread that begins or ends to run.
 */
#pragma once

#include "charge_now.bpf.h"
#include "climbs.bpf.h"
#include "combined.bpf.h"
#include "idle.bpf.h"
#include "leaves.bpf.h"
#include "plain.bpf.h"
#include "policy.bpf.h"

/* The running thread's use of the CPU is its container's (core/served). */
static __always_inline void allocation_tells(struct fief_cpu *cs, struct task_struct *p, struct fief_ref allocation)
{
	if (!cs)
		return;
	cs->next_allocation = allocation;
	cs->next_thread = (__u64)p;
}

/* As run_begins(), of one that was at the front. It begins on this CPU, and not anew: one that runs, here or elsewhere, has left the front. */
static __always_inline bool front_runs(struct sched_machine *m, struct task_struct *p)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct sched_place *here = place_in(m, cpu);
	__u64 front = front_seen(m);

	if (!is_sign(front) || here->brief || here->idle || !plain_runs(m, here, p, front))
		return false;
	allocation_tells(cpu_at(cpu), p, here->bound);
	return true;
}

/*
 * The kernel says so of a thread that runs on another CPU too, as its nice value, its policy or its CPUs are changed from here: it ends to
 * run, and begins again.
 */
static __noinline int run_begins(struct sched_machine *m, struct task_struct *p)
{
	s32 cpu = cpu_of(p);
	bool own = cpu == bpf_get_smp_processor_id();
	struct sched_place *here = place_in(m, cpu);
	struct sched_waiting *w = waiting_of(p);
	bool late = own && here->brief && waits_too_long(w, bpf_ktime_get_ns());

	wait_end(w);
	if (w) {
		w->since_ns = 0;
		plain_ran(w, p->se.sum_exec_runtime); /* what it had before somebody changed what it is */
		place_runs(w, p->se.sum_exec_runtime);
	}
	if (own)
		here->section = here->brief ? SECTION_LOOKS : 0;
	if (own)
		idle_ends(m, here);
	plain_begins(here, w, p);
	here->at = w ? w->thread.at : 0;
	here->of = w ? w->of : 0;
	here->rank = p->flags & PF_KTHREAD ? ~0u : rank_runs(p, w);
	here->own = p->flags & PF_KTHREAD ? 0 : own_of(w);
	here->turn = p->flags & PF_KTHREAD ? 0 : turn_of(w);
	here->lent = w && w->lent;
	here->thread = (__u64)p;
	if (own && here->brief && !(p->flags & PF_KTHREAD)) {
		here->brief = 0;
		if (late && !is_dying(p))
			moment_begins(p, SECTION_MOMENTS);
		else if (!is_dying(p)) /* it is let in only to wait elsewhere (leaves.bpf.h) */
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	} else if (w && !(p->flags & PF_KTHREAD) && climber_is_held(w, w->allocation.id) && !is_dying(p)) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	return 0;
}

/* Nobody is to be preempted on that CPU until the next one runs. */
static __always_inline void place_leaves(struct sched_place *here)
{
	here->rank = ~0u;
	here->of = 0;
	here->own = 0;
	here->turn = 0;
	here->lent = 0;
	here->thread = 0;
}

/* As run_ends(), of one of which something may have to be asked. */
static __noinline int run_settles(struct task_struct *p, bool runnable)
{
	struct sched_machine *m = machine_get();
	struct sched_place *here = place_in(m, cpu_of(p));
	struct sched_waiting *w = waiting_of(p);

	open_settle(p);
	if (w) {
		if (is_counted(m, w)) /* its line would be chosen for it as long as it sleeps */
			wait_over(w);
		w->since_ns = 0;
		place_ran(w, p->se.sum_exec_runtime);
		served_ends(w, p);
		plain_ends(w, this_cpu(), p);
		if (!runnable && p->__state) {
			w->lent = 0;
			if (w->answered)
				answered_sleeps(w, p->se.sum_exec_runtime);
		} else if (w->answered) {
			w->asked = 0; /* it is to be looked at as it sleeps (plain_begins()) */
		}
	}
	place_leaves(here);
	return 0;
}

/* It goes to sleep, if it is not `runnable`, or changes what it is. */
static __always_inline void run_ends(struct task_struct *p, bool runnable)
{
	__u32 cpu = cpu_of(p);
	struct sched_place *here = place_at(cpu);

	if (!runnable && plain_stops(here, cpu_at(cpu), p))
		place_leaves(here);
	else
		run_settles(p, runnable);
}

static __always_inline void run_ticks(struct task_struct *p)
{
	__u32 id;

	if (p->flags & PF_KTHREAD)
		return;
	charge_now(bpf_ktime_get_ns());
	open_settle(p);
	served_take(waiting_of(p), p->pid, p->se.sum_exec_runtime);
	id = container_of_thread(p);
	if (is_held(id))
		slice_set(p, 0);
}

/* sched_yield(): the others of its container first. */
static __always_inline bool run_yields(struct task_struct *from, struct task_struct *to)
{
	struct sched_waiting *w = waiting_of(from);

	if (w)
		place_yields(w);
	slice_set(from, 0);
	return false;
}

/* It is another scheduler's from now on, and may have been taken out of where it waited. */
static __always_inline void run_leaves(struct task_struct *p)
{
	wait_end(waiting_of(p));
}
