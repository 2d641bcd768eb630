/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Leaves: threads that are to wait in another line than they do.
 *
 * Problem: what a thread waits on is chosen when it begins to wait. Later the line may be nobody's but its own threads' (combined), or a
 * request of a better container may come to wait for the thread (lent).
 * How: such a thread goes to the queue of those that are let in for a moment (floor), after which it waits anew, where it is to.
 * Limits: LENT_SEEN threads of a line are looked at for which somebody may have come to wait.
 */
#pragma once

#include "combined.bpf.h"

#define LENT_SEEN 64

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

/* Those of a line whose turn would come first elsewhere by now. Static: only a caller's context makes the iterator legal (RCU). */
static __noinline int lent_leave(__u32 number)
{
	struct task_struct *p;
	__u32 seen = 0;
	int left = 0;

	bpf_for_each (scx_dsq, p, DSQ(number), 0) {
		struct sched_waiting *w = waiting_of(p);
		__u32 at;

		if (seen++ >= LENT_SEEN)
			break;
		if (!w || !w->serving)
			continue;
		at = w->allocation.id;
		if (lent_best(w->queue, w->listener - 1, w->bound, at, NO_CPU) == at)
			continue;
		if (scx_bpf_dsq_move(&___it, p, DSQ(QUEUE_LATE), 0)) {
			left = 1;
			break;
		}
	}
	return left;
}

/* Looks for threads that a better container waits for by now; unless it `must`, only where something is new of the queues. */
static __always_inline bool lent_look(struct sched_machine *m, bool must)
{
	bool left = false;
	__u32 number;
	__u64 *news;

	if (!m->serving)
		return false;
	news = queue_news_get();
	if (!news || (!must && m->news == *news))
		return false;
	m->news = *news;
	bpf_for (number, 0, m->top) {
		struct sched_queue *q = queue_at(number);
		struct sched_node *n;

		if (!q)
			break;
		n = q->taken ? node_at(q->container) : NULL;
		if (n && n->serving && lent_leave(number))
			left = true;
	}
	return left;
}
