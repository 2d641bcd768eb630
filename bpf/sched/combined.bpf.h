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
 * wait, its limit is used up, or it ends, the thread is let go at the next beat. Until a thread is asked again, its work counts there. A thread is new in the line each time that it changes lines.
 */
#pragma once

#include "pick.bpf.h"
#include "policy.bpf.h"
#include "served.bpf.h"

#define NO_CPU (~0u)

/* The child of `top` that `id` is or lies below; 0: it is `top` itself; PICK_NONE: it is not below. */
__noinline int branch_of(__u32 id, __u32 top)
{
	int branch = PICK_NONE, below = 0, level;

	bpf_for (level, 0, LEVELS) {
		struct fief_container *c = container_at(id);

		if (id == top) {
			branch = below;
			break;
		}
		if (!c || id == FIEF_ROOT)
			break;
		below = id;
		id = c->parent.id;
	}
	return branch;
}

/* How the tree would order a child of `parent` (0: its own threads) among the others there. */
struct standing {
	__u32 priority;
	__u32 share;
	__u64 at;
};

static __noinline int child_stands(__u32 id, __u32 parent, struct standing *s)
{
	struct fief_container *c = container_at(id), *pc = container_at(parent);
	struct sched_node *n = node_at(id), *p = node_at(parent);
	struct fief_attributes *a;
	__u64 at;

	if (!c || !pc || !n || !p || !s)
		return 0;
	if (!id) {
		s->priority = OWN_PRIORITY;
		s->share = 0;
		s->at = within(p->own_at + stride_weight(pc->charged_own_ns, OWN_WEIGHT), p->rest_clock,
			       stride_weight(LAG_NS, OWN_WEIGHT), stride_weight(LEAD_NS, OWN_WEIGHT));
		return 0;
	}
	a = attributes_of(c);
	at = n->generation == c->generation ? n->at : 0;
	s->priority = a->priority;
	s->share = a->share_ppm;
	if (a->share_ppm)
		s->at = within(at + stride(c->charged_ns, a->share_ppm), p->clock, stride(LAG_NS, a->share_ppm),
			       stride(LEAD_NS, a->share_ppm));
	else
		s->at = within(at + stride_weight(c->charged_ns, a->weight), p->rest_clock,
			       stride_weight(LAG_NS, a->weight), stride_weight(LEAD_NS, a->weight));
	return 0;
}

/* Where the children without a share stand, as one. */
static __always_inline __u64 rest_stands(__u32 id)
{
	struct fief_container *c = container_at(id);
	struct sched_node *n = node_at(id);
	__u64 rest;

	if (!c || !n)
		return 0;
	rest = rest_part(id, c);
	return within(n->rest_at, n->clock, stride(LAG_NS, rest), stride(LEAD_NS, rest));
}

/* Whether the turn of `a`'s own threads comes before that of `b`'s. */
__noinline int turn_before(__u32 a, __u32 b)
{
	struct standing of_a = {}, of_b = {};
	int branch = PICK_NONE, level;
	__u32 below_a = 0;
	__u64 rest;

	/* up to where both part */
	bpf_for (level, 0, LEVELS) {
		struct fief_container *c = container_at(a);

		branch = branch_of(b, a);
		if (branch >= 0 || !c || a == FIEF_ROOT)
			break;
		below_a = a;
		a = c->parent.id;
	}
	if (branch < 0)
		return 0;
	child_stands(below_a, a, &of_a);
	child_stands(branch, a, &of_b);
	if (of_a.priority != of_b.priority)
		return of_a.priority > of_b.priority;
	if (!of_a.share == !of_b.share)
		return is_before(of_a.at, of_b.at);
	rest = rest_stands(a);
	return of_a.share ? is_before(of_a.at, rest) : is_before(rest, of_b.at);
}

/* Brings the budgets on the way up to date: nobody looks at those of a container in whose line no thread waits. */
__noinline int budgets_settle(__u32 id, __u64 now)
{
	struct sched_machine *m = machine_get();
	int level;

	bpf_for (level, 0, LEVELS) {
		struct fief_container *c = container_at(id), *pc;
		struct fief_attributes *a;
		struct sched_node *n, *p;

		if (!c || !m || id == FIEF_ROOT)
			break;
		a = attributes_of(c);
		pc = container_at(c->parent.id);
		if (a->limit_ppm && pc) {
			if (!machine_lock())
				break;
			n = node_get(id, c);
			p = node_at(c->parent.id);
			if (n && p) {
				node_settle(n, c, a, p, rest_part(c->parent.id, pc));
				budget_left(n, a->limit_ppm, now);
			}
			machine_unlock(m);
		}
		id = c->parent.id;
	}
	return 0;
}

/* Whether a thread of the container has a CPU by the container's own part, apart from the CPU that asks. */
__noinline int runs_for(__u32 id, __u32 but)
{
	__u32 cpu;
	int runs = 0;

	bpf_for (cpu, 0, cpu_count) {
		struct sched_place *there = place_at(cpu);

		if (there && cpu != but && there->own == id + 1) {
			runs = 1;
			break;
		}
	}
	return runs;
}

/* Of what the thread served lately and `bound`, for which it works now: in whose line its turn comes first. */
__noinline __u32 served_best(struct sched_waiting *w __arg_nonnull, __u32 bound, __u64 ran_ns, __u32 but)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 best = bound, i;

	budgets_settle(bound, now);
	if (is_held(bound))
		return bound;
	bpf_for (i, 0, FIEF_SERVED) {
		struct sched_served *s = &w->served[i & (FIEF_SERVED - 1)];
		__u32 id = s->container.id;
		struct sched_node *n;

		if (i >= w->served_count)
			break;
		if (id == bound || !served_lately(s, ran_ns, now))
			continue;
		/* what lies above is no other part: the turn of its own threads is theirs */
		if (branch_of(bound, id) >= 0)
			continue;
		n = node_at(id);
		if (!n || n->queued || runs_for(id, but))
			continue;
		if (is_held(id)) {
			budgets_settle(id, now);
			if (is_held(id))
				continue;
		}
		if (turn_before(id, best))
			best = id;
	}
	return best;
}

/* The container on whose allocation a thread waits from now on that works for `bound`. */
static __always_inline __u32 served_for(struct sched_waiting *w, __u32 bound, __u64 ran_ns, __u32 but)
{
	__u32 best = bound;

	if (!w)
		return bound;
	w->foreign = 0;
	w->allocation = ref_of(bound); /* the root too: who waits unbound and works bound has had that one's turn */
	if (bound == FIEF_ROOT || !w->served_count || (w->served_count == 1 && w->served[0].container.id == bound))
		return bound;
	best = served_best(w, bound, ran_ns, but);
	w->foreign = best != bound;
	w->allocation = ref_of(best);
	if (w->foreign)
		state_count(combined);
	return best;
}

static __always_inline __u32 allocation_of(struct task_struct *p, struct sched_waiting *w)
{
	return served_for(w, container_of_thread(p), p->se.sum_exec_runtime, NO_CPU);
}

/* The container on whose allocation the thread would wait that could go on running; its number + 1. */
static __always_inline __u32 prev_waits(struct task_struct *prev)
{
	struct fief_cpu *cs = this_cpu();
	__u32 id;

	if (!prev || prev->flags & PF_KTHREAD || !(prev->scx.flags & SCX_TASK_QUEUED))
		return 0;
	if (!cs || !cs->has_task || cs->running != prev->pid)
		return FIEF_ROOT + 1;
	id = container_get(cs->task.binding) ? cs->task.binding.id : FIEF_ROOT;
	return served_for(waiting_of(prev), id, prev->se.sum_exec_runtime, bpf_get_smp_processor_id()) + 1;
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

/* The container whose thread runs by its own part, as runs_for() is asked. */
static __always_inline __u32 own_of(struct sched_waiting *w)
{
	return w && !w->foreign && w->allocation.id != FIEF_NO_ID ? w->allocation.id + 1 : 0;
}

/* The thread that runs goes on, on what was chosen for it now: the kernel does not say that it begins. */
static __always_inline void allocation_keeps(struct task_struct *p, struct sched_place *here, __u32 id)
{
	struct sched_waiting *w = waiting_of(p);
	struct fief_cpu *cs = this_cpu();

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
}

/* Static: only a caller's context makes the iterator legal (RCU). */
static __noinline int foreign_leave(__u32 number)
{
	struct task_struct *p;
	int left = 0;

	bpf_for_each (scx_dsq, p, DSQ(number), 0) {
		struct sched_waiting *w = waiting_of(p);

		if (w && w->foreign && scx_bpf_dsq_move(&___it, p, DSQ(QUEUE_LATE), 0))
			left = 1;
	}
	return left;
}

/* Whether nobody may wait in its line by now who works for another one: its own threads do, its limit is used up, or it has ended. */
static __always_inline bool foreign_leaves(struct sched_queue *q)
{
	struct fief_container *c = container_at(q->container);
	struct sched_node *n = node_at(q->container);

	return !c || !n || n->queued > 1 || c->state != FIEF_ALIVE || c->generation != n->generation ||
	       is_held(q->container);
}

/* Those that wait on an allocation which is not to be had any more are let in for a moment (floor), to wait on another one. */
static __always_inline bool foreign_look(struct sched_machine *m)
{
	bool left = false;
	__u32 number;

	if (!m->foreign)
		return false;
	bpf_for (number, 0, m->top) {
		struct sched_queue *q = queue_at(number);

		if (!q)
			break;
		if (q->taken && foreign_leaves(q) && foreign_leave(number))
			left = true;
	}
	return left;
}

/* Tells a thread that has several, to who walks all threads. */
static __always_inline int combined_tell(struct seq_file *to, struct task_struct *p)
{
	struct fief_combined told = {};
	struct sched_waiting *w;
	__u64 now;

	if (!p)
		return 0;
	w = waiting_of(p);
	if (!w || w->served_count < 2)
		return 0;
	now = bpf_ktime_get_ns();
	for (__u32 i = 0; i < FIEF_SERVED; i++) {
		if (i < w->served_count && served_lately(&w->served[i], p->se.sum_exec_runtime, now))
			told.served[told.count++ & (FIEF_SERVED - 1)] = w->served[i].container;
	}
	if (told.count < 2)
		return 0;
	told.thread = p->pid;
	told.process = p->tgid;
	bpf_seq_write(to, &told, sizeof(told));
	return 0;
}
