/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Combined: a thread that serves several containers in turn has the allocations of all of them (the scheduler binding of Banga et
 * al., OSDI 1999, section 4.3).
 *
 * Problem: an event loop that happens to work for a container of 5 % when the CPU is given away would wait for that one's turn, and with it
 * the requests of the container of 60 %.
 * How: what a thread served lately (core/served) is kept beside it. When it begins to wait it takes the line, of those, in which its
 * turn comes first: the tree is compared from where the containers part. Its work counts as the CPU of that one until it is asked again.
 * What it is charged for stays with whom it works for, and so do limits: a thread is held while it works for a container whose limit
 * is used up, and has no allocation of such a one. Where threads of a container wait themselves, no thread that works for another
 * one takes its allocation: of a pool of threads, those that work for the better container go first.
 * A container is forgotten once the thread has worked SERVED_WORK_NS for others, after SERVED_NS, when it ends, and when the
 * application or somebody who binds the thread says so.
 * Limits: FIEF_SERVED containers. What a thread waits on is chosen when it begins to wait; where that one's own threads come to
 * wait, its limit is used up, or it ends, the thread is let go at the next beat (leaves). Until a thread is asked again, its work counts
 * there. A thread is new in the line each time that it changes lines.
 */
#pragma once

#include "policy.bpf.h"
#include "lent.bpf.h"
#include "plain.bpf.h"
#include "served.bpf.h"

/* Of what the thread served lately and `bound`, for which it works now: in whose line its turn comes first. */
__noinline __u32 served_best(struct sched_waiting *w __arg_nonnull, __u32 bound, __u64 ran_ns, __u32 but)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 best = bound, i;

	budgets_settle(bound, now, true);
	if (is_held(bound))
		return bound;
	bpf_for (i, 0, FIEF_SERVED) {
		struct sched_served *s = &w->served[i & (FIEF_SERVED - 1)];
		__u32 id = s->container.id;

		if (i >= w->served_count)
			break;
		if (id == bound || !served_lately(s, ran_ns, now))
			continue;
		if (turn_is_free(id, bound, but, now) && turn_before(id, best))
			best = id;
	}
	return best;
}

/* The container on whose allocation a thread waits from now on that works for `bound`. */
static __always_inline __u32 served_for(struct sched_waiting *w, __u32 bound, __u64 ran_ns, __u32 but)
{
	__u32 best = bound, lent;

	if (!w)
		return bound;
	w->asked = 0;
	w->foreign = 0;
	w->lent = 0;
	w->bound = bound;
	w->allocation =
	    ref_of(bound); /* the root too: a thread that waits unbound and works bound has had that one's turn */
	if (bound == FIEF_ROOT)
		return bound;
	if (w->served_count > 1 || (w->served_count && w->served[0].container.id != bound))
		best = served_best(w, bound, ran_ns, but);
	if (!listener_lately(w, ran_ns)) {
		w->queue = 0;
	} else {
		lent = lent_best(w->queue, w->listener - 1, bound, best, but);
		w->lent = lent != best;
		best = lent;
	}
	w->foreign = best != bound;
	w->allocation = ref_of(best);
	if (w->lent)
		state_count(lent);
	else if (w->foreign)
		state_count(combined);
	return best;
}

static __always_inline __u32 allocation_of(struct task_struct *p, struct sched_waiting *w)
{
	__u64 requests;
	__u32 id;

	if (w && plain_is_known(w) && container_get(w->allocation))
		return w->allocation.id;
	requests = requests_told(); /* before: one that comes meanwhile is seen the next time */
	id = served_for(w, container_of_thread(p), p->se.sum_exec_runtime, NO_CPU);
	if (w)
		plain_note(w, requests);
	return id;
}

/* Whether it is a thread of the tree that could go on running. */
static __always_inline bool may_stay(struct task_struct *prev)
{
	return prev && prev->scx.flags & SCX_TASK_QUEUED && !(prev->flags & PF_KTHREAD);
}

/* The container on whose allocation the thread would wait that could go on running; its number + 1. */
static __always_inline __u32 prev_waits(struct sched_machine *m, struct task_struct *prev)
{
	struct fief_cpu *cs = this_cpu();
	struct sched_waiting *w;
	__u32 id;

	if (!may_stay(prev))
		return 0;
	w = waiting_of(prev);
	if (w && is_counted(m, w)) /* where it is, nobody else would have that container's turn, and neither would it */
		wait_over(w);
	if (!cs || !cs->has_task || cs->running != prev->pid)
		return FIEF_ROOT + 1;
	id = container_get(cs->task.binding) ? cs->task.binding.id : FIEF_ROOT;
	return served_for(w, id, prev->se.sum_exec_runtime, bpf_get_smp_processor_id()) + 1;
}

/* A thread begins to run. Returns the container that it runs for. */
static __always_inline __u32 allocation_runs(struct task_struct *p, struct sched_waiting *w)
{
	struct fief_cpu *cs = this_cpu();

	if (!cs || !w || w->allocation.id == FIEF_NO_ID || !container_get(w->allocation)) {
		if (cs)
			cs->next_thread = 0;
		return container_of_thread(p);
	}
	cs->next_allocation = w->allocation;
	cs->next_thread = (__u64)p;
	return w->allocation.id;
}

/* The rank by which it runs: that of when it began to wait, or, where it did not, as it is now. */
static __always_inline __u32 rank_runs(struct task_struct *p, struct sched_waiting *w)
{
	__u32 id = allocation_runs(p, w), ranked = w && id == w->allocation.id ? w->ranked : 0;

	if (w)
		w->ranked = 0;
	return ranked ? ranked - 1 : rank_of(id);
}

/* The container whose thread runs by its own part, as runs_for() is asked. */
static __always_inline __u32 own_of(struct sched_waiting *w)
{
	return w && !w->foreign && w->allocation.id != FIEF_NO_ID ? w->allocation.id + 1 : 0;
}

/* Whose turn it has that works for another one, as turn_runs() is asked. */
static __always_inline __u32 turn_of(struct sched_waiting *w)
{
	return w && w->foreign && w->allocation.id != FIEF_NO_ID ? w->allocation.id + 1 : 0;
}

/* The thread that runs goes on, on what was chosen for it now: the kernel does not say that it begins. */
static __always_inline void allocation_keeps(struct task_struct *p, struct sched_place *here, __u32 id)
{
	struct sched_waiting *w = waiting_of(p);
	struct fief_cpu *cs = this_cpu();

	here->plain = 0;
	if (w && cs && cs->running == p->pid)
		cs->allocation = w->allocation;
	if (w && id != FIEF_ROOT && w->of != id + 1) {
		place_ran(w, p->se.sum_exec_runtime);
		place_take(id, w, p->scx.weight, bpf_ktime_get_ns());
		place_runs(w, p->se.sum_exec_runtime);
	}
	here->rank = rank_of(id);
	here->of = w ? w->of : 0;
	here->at = w ? w->thread.at : 0;
	here->own = own_of(w);
	here->turn = turn_of(w);
	here->lent = w && w->lent;
}

/* Tells a thread that has several, or a turn that is lent, to a walk over all threads. */
static __always_inline int combined_tell(struct seq_file *to, struct task_struct *p)
{
	struct fief_combined told = {.lent = {FIEF_NO_ID, 0}};
	struct sched_waiting *w;
	__u64 now;

	if (!p)
		return 0;
	w = waiting_of(p);
	if (!w || (w->served_count < 2 && !w->lent))
		return 0;
	now = bpf_ktime_get_ns();
	for (__u32 i = 0; i < FIEF_SERVED; i++) {
		if (i < w->served_count && served_lately(&w->served[i], p->se.sum_exec_runtime, now))
			told.served[told.count++ & (FIEF_SERVED - 1)] = w->served[i].container;
	}
	if (w->lent && !told.count)
		told.served[told.count++] = ref_of(w->bound);
	if (w->lent)
		told.lent = w->allocation;
	else if (told.count < 2)
		return 0;
	told.thread = p->pid;
	told.process = p->tgid;
	bpf_seq_write(to, &told, sizeof(told));
	return 0;
}
