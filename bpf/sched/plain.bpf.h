/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Plain: a thread that works for one container alone, of which nothing has to be asked anew, and its way past the tree.
 *
 * Problem: whom a thread works for, whom it served, which limits are above it and how its line is ordered is found out at each wake-up, and most
 * threads answer as they did the last time. To ask its two storages costs as much as all that is compared here.
 * How: where the thread stopped as it began, and no thread was left a request since (core/request), it works for the same one. Without a limit
 * above, in a line by `fair`, and with no more to be settled of it than a slice, it waits at the front (front.bpf.h), if nobody else waits. What
 * the switch needs to know of it lies in the machine's record then, and so neither as it begins nor as it stops its storage is asked for. What
 * it had of the CPU its place learns as it comes to wait again, and the line's clock follows it then.
 * One that comes to a line, or to an idle CPU, is not asked anew either.
 * Limits: a slice that has not been settled is no further from what the tree would know than a lag. The way up is looked at once a beat: a
 * limit that somebody sets there meanwhile, another priority or policy begins with the next.
 */
#pragma once

#include "charge_now.bpf.h"
#include "front.bpf.h"
#include "policy.bpf.h"

#define UNSETTLED_NS SLICE_NS

/* What it had of the CPU since its place was last told. Of another policy it is told as it stops. */
static __always_inline void plain_ran(struct sched_waiting *w, __u64 sum_ns)
{
	if (w->fair)
		fair_ran(NULL, &w->thread, sum_ns - w->ran_ns);
	w->ran_ns = sum_ns;
}

/* The thread has been asked, when there had been so many requests; whether that need be done again. */
static __always_inline void plain_note(struct sched_waiting *w, __u64 requests)
{
	bool other = w->served_count > 1 || (w->served_count && w->served[0].container.id != w->bound);

	w->asked = other || w->foreign || w->queue || w->bound == FIEF_ROOT ? 0 : requests + 1;
}

/* Whether it works for the container that it worked for when it was asked last. */
static __always_inline bool plain_is_known(const struct sched_waiting *w)
{
	struct fief_control *control = control_get();

	return control && w->asked == *(volatile __u64 *)&control->requests + 1;
}

/* Whether the way up from the container has been looked at in this beat, and has no limit. */
static __always_inline bool plain_walked(const struct sched_machine *m, const struct sched_node *n, __u32 generation)
{
	return n->walked == m->beats + 1 && n->walked_of == generation;
}

/* Looks at it. Whether no more is to be settled on it than a slice, and its own threads are in order by `fair`. */
__noinline int plain_walks(struct sched_node *n __arg_nonnull, __u32 id, __u32 generation)
{
	struct sched_machine *m = machine_get();
	struct fief_container *c = container_at(id);
	struct fief_attributes *a;
	bool least = false, plain;
	__u32 rank = 0;
	int level;

	if (!c || id == FIEF_ROOT || c->generation != generation)
		return 0;
	a = attributes_of(c);
	plain = a->policy == FIEF_POLICY_FAIR;
	for (level = 0; level < LEVELS && can_loop; level++) {
		if (a->limit_ppm)
			return 0;
		plain &= c->charged_ns <= UNSETTLED_NS;
		least |= !a->priority;
		rank = a->priority + 1;
		id = c->parent.id;
		if (id == FIEF_ROOT)
			break;
		c = container_at(id);
		if (!c)
			break;
		a = attributes_of(c);
	}
	n->walked_rank = least ? 0 : rank;
	n->walked_of = generation;
	n->walked = m->beats + 1;
	/* else the thread comes to its line, where that is settled, and the next one looks again */
	n->walked_plain = plain ? n->walked : 0;
	return plain;
}

/*
 * Whether the thread waits alone from now on, at the front. Then it has its rank, and its place in its line, by which it is inserted in the queue
 * of the front: if others come to the line, that one is theirs.
 */
static __always_inline bool plain_waits(struct sched_machine *m, struct task_struct *p, struct sched_waiting *w,
					__u64 *place, __u32 *rank)
{
	struct line_thread *t = &w->thread;
	__u32 id, generation;
	struct sched_node *n;
	struct sched_line *l;
	__u64 sign, sum_ns, ran_ns, unsettled_ns;

	if (!plain_is_known(w) || !w->fair)
		return false;
	n = node_at(w->allocation.id);
	if (!n)
		return false;
	l = &n->line;
	id = w->allocation.id;
	generation = w->allocation.generation;
	/* the epoch tells whose line it is, too (line_exchange()) */
	if (w->of != id + 1 || w->generation != generation || w->epoch != l->epoch)
		return false;
	sum_ns = p->se.sum_exec_runtime;
	ran_ns = sum_ns - w->ran_ns;
	unsettled_ns = w->unsettled_ns + ran_ns;
	if (unsettled_ns > UNSETTLED_NS ||
	    ((n->walked_plain != m->beats + 1 || n->walked_of != generation) && !plain_walks(n, id, generation)))
		return false;
	sign = front_sign(w->self, id);
	if (!front_enters(m, sign))
		return false;
	w->sign = sign;
	w->unsettled_ns = unsettled_ns;
	w->ran_ns = sum_ns;
	fair_ran(l, t, ran_ns);
	t->weight = p->scx.weight;
	fair_place(l, t, 0);
	if (is_before(l->clock, t->at))
		l->clock = t->at;
	w->since_ns = m->now_ns;
	m->front_at = t->at;
	m->front_allocation = w->allocation;
	*rank = n->walked_rank;
	m->front_rank = *rank;
	w->ranked = *rank + 1;
	*place = place_in_queue(l, t);
	return true;
}

/* Whether the thread that begins to run on this CPU is at the front, as far as seen. All that is known of it is in the machine's record. */
static __always_inline bool plain_runs(struct sched_machine *m, struct sched_place *here, struct task_struct *p,
				       __u64 front)
{
	struct fief_ref allocation;
	__u32 rank;
	__u64 at;

	here->begins = (__u64)p;
	if ((front ^ front_self(*(volatile __u64 *)&here->begins)) & FRONT_SELF)
		return false;
	at = m->front_at;
	allocation = m->front_allocation;
	rank = m->front_rank;
	if (!front_leaves(m, front))
		return false;
	here->section = 0;
	here->at = at;
	here->of = allocation.id + 1;
	here->rank = rank;
	here->own = allocation.id + 1; /* and nobody's turn, since the last thread stopped */
	here->thread = (__u64)p;
	here->plain = (__u64)p;
	here->bound = allocation;
	return true;
}

/* One begins to run that was in a line: of what is to be asked nothing, its storage need not be asked for as it stops. */
static __always_inline void plain_begins(struct sched_place *there, struct sched_waiting *w, struct task_struct *p)
{
	there->plain = 0;
	if (!w || !w->asked || !w->fair || w->container || w->sign || w->answered)
		return;
	there->plain = (__u64)p;
	there->bound = w->allocation;
}

/* One of which something may have to be asked has stopped: whether it works for what it was asked for yet. */
static __always_inline void plain_ends(struct sched_waiting *w, const struct fief_cpu *cs, struct task_struct *p)
{
	if (!cs || !cs->has_task || cs->running != p->pid || !same_ref(cs->task.binding, w->allocation))
		w->asked = 0;
}

/* Whether a thread that goes to sleep stops as it began to run: then it waits the next time as it did. */
static __always_inline bool plain_stops(const struct sched_place *here, const struct fief_cpu *cs,
					struct task_struct *p)
{
	return here->plain == (__u64)p && cs && cs->has_task && cs->thread == (__u64)p &&
	       same_ref(cs->task.binding, here->bound) &&
	       !(cs->task.ring | cs->served_count | cs->served_reset | cs->received) &&
	       cs->task.pending_ns <= OPEN_MOST_NS;
}
