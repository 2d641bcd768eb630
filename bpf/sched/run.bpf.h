/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Run: what the scheduler keeps of a thread that begins or ends to run.
 */
#pragma once

#include "charge_now.bpf.h"
#include "climbs.bpf.h"
#include "combined.bpf.h"
#include "leaves.bpf.h"
#include "policy.bpf.h"

/*
 * The kernel says so of a thread that runs on another CPU too, as its nice value, its policy or its CPUs are changed from here: it ends to
 * run, and begins again.
 */
static __always_inline void run_begins(struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	bool own = cpu == bpf_get_smp_processor_id();
	struct sched_place *here = place_at(cpu);
	struct sched_waiting *w = waiting_of(p);
	bool late = own && here && here->brief && waits_too_long(p, bpf_ktime_get_ns());

	wait_end(w);
	if (w) {
		w->since_ns = 0;
		place_runs(w, p->se.sum_exec_runtime);
	}
	if (!here)
		return;
	if (own)
		here->section = here->brief ? SECTION_LOOKS : 0;
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
}

static __always_inline void run_ends(struct task_struct *p, bool runnable)
{
	struct sched_place *here = place_at(scx_bpf_task_cpu(p));
	struct sched_waiting *w = waiting_of(p);

	open_settle(p);
	if (w) {
		place_ran(w, p->se.sum_exec_runtime);
		served_ends(w, p);
	}
	/* nobody is to be preempted until the next one runs */
	if (here) {
		here->rank = ~0u;
		here->of = 0;
		here->own = 0;
		here->turn = 0;
		if (runnable)
			here->thread = 0;
	}
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

/* It goes to sleep, to another CPU, or changes what it is. */
static __always_inline void run_quiets(struct task_struct *p, u64 flags)
{
	struct sched_place *here = place_at(scx_bpf_task_cpu(p));
	struct sched_waiting *w;

	/* the one that runs here waits nowhere: its storage need not be asked for */
	if (here && here->thread == (__u64)p) {
		here->thread = 0;
		if (!here->lent)
			return;
	}
	w = waiting_of(p);
	wait_end(w);
	if (w && flags & SCX_DEQ_SLEEP)
		w->lent = 0;
}
