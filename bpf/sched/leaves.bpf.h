/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Leaves: threads that are to wait in another line than they do.
 *
 * Problem: what a thread waits on is chosen when it begins to wait. Later the line may be nobody's but its own threads' (combined), or a
 * request of a better container may come to wait for the thread (lent). And one that is held below its line (climbs) is to wait there again.
 * How: such a thread goes to the queue of those that are let in for a moment (floor), after which it waits anew, where it is to.
 * This is done with the run queue locked, so there is one look in LOOK_NS on the whole machine, and one look is at LENT_SEEN threads
 * of LENT_LINES lines in all; the next one goes on behind them, in turn. Only where a request came to a queue, or went to a server, a round
 * of looks begins; and each beat. A look costs a look-up for each of these threads, and, where a class of its queue waits, a
 * comparison of turns with each of these: by estimate 10 us where nobody waits, and 100 us where one class does of each queue.
 * Limits: of the threads in a line only the first LENT_SEEN are looked at. With QUEUES lines a round takes 16 looks.
 */
#pragma once

#include "combined.bpf.h"
#include "floor.bpf.h"

#define LENT_SEEN  64
#define LENT_LINES 256
#define LOOK_NS	   1000000ull
#define HELD_SEEN  256

/* Static: only a caller's context makes the iterator legal (RCU). */
static __noinline int foreign_leave(__u32 number)
{
	struct task_struct *p;
	int left = 0;

	bpf_for_each (scx_dsq, p, DSQ(number), 0) {
		struct sched_waiting *w = waiting_of(p);

		if (w && w->foreign && late_goes(&___it, p, w, true))
			left = 1;
	}
	return left;
}

/* Whether nobody may wait in its line by now that works for another one: its own threads do, its limit is used up, or it has ended. */
static __always_inline bool foreign_leaves(__u32 id)
{
	struct fief_container *c = container_at(id);
	struct sched_node *n = node_at(id);

	return !c || !n || n->queued > 1 || c->state != FIEF_ALIVE || c->generation != n->generation || is_held(id);
}

/* Those that wait on an allocation which is not to be had any more are let in for a moment (floor), to wait on another one. */
static __always_inline bool foreign_look(struct sched_machine *m)
{
	bool left = false;
	__u32 number;

	if (!m->foreign)
		return false;
	bpf_for (number, 0, m->top) {
		__u32 queue, line = line_by_number(m, number, &queue);

		if (line && foreign_leaves(line - 1) && foreign_leave(queue))
			left = true;
	}
	return left;
}

/* Those that are held below their lines go whose limits are to have some left by now. Static, as foreign_leave(). */
static __noinline int held_leave(struct sched_machine *m, __u64 now)
{
	struct task_struct *p;
	int left = 0;

	m->let_in = 0;
	bpf_for_each (scx_dsq, p, DSQ(QUEUE_HELD), 0) {
		if (m->let_in >= HELD_SEEN || is_before(now, p->scx.dsq_vtime))
			break;
		m->let_in++;
		if (late_goes(&___it, p, waiting_of(p), true))
			left = 1;
	}
	return left;
}

/*
 * Those at the front of a line go whose turn would come first elsewhere by now. What was looked at is counted in the
 * machine's record, where the verifier does not follow it. Static: only a caller's context makes the iterator legal (RCU).
 */
static __noinline int lent_leave(struct sched_machine *m, __u32 number)
{
	struct task_struct *p;
	int left = 0;

	bpf_for_each (scx_dsq, p, DSQ(number), 0) {
		struct sched_waiting *w = waiting_of(p);
		__u32 at;

		if (m->seen >= LENT_SEEN)
			break;
		m->seen++;
		if (!w || !w->serving || !listener_lately(w, p->se.sum_exec_runtime))
			continue;
		at = w->allocation.id;
		if (lent_best(w->queue, w->listener - 1, w->bound, at, NO_CPU) == at)
			continue;
		if (late_goes(&___it, p, w, true)) {
			left = 1;
			break;
		}
	}
	return left;
}

/* Whether there are lines to be looked at now, by this CPU: the round goes on, or, of news, another one begins. */
static __always_inline bool look_begins(struct sched_machine *m, __u64 now)
{
	bool must = *(volatile __u32 *)&m->must_look;
	__u64 looked = *(volatile __u64 *)&m->looked_ns, *news = queue_news_get();

	if (!news || (!must && !m->lines && m->news == *news))
		return false;
	if ((__s64)(now - looked) < (__s64)LOOK_NS || __sync_val_compare_and_swap(&m->looked_ns, looked, now) != looked)
		return false;
	m->must_look = 0;
	if (!m->lines) {
		m->news = *news;
		m->lines = m->top;
	}
	return true;
}

/*
 * Looks for threads that a better container waits for by now; but for one look each beat, only where something is new of the queues.
 * By a CPU that chooses, not by the beat itself: it takes the tree's lock, which needs interrupts off.
 */
static __always_inline void lent_look(struct sched_machine *m, __u64 now)
{
	__u32 i;

	if (!m->serving || !look_begins(m, now))
		return;
	m->seen = 0;
	bpf_for (i, 0, LENT_LINES) {
		__u32 number = m->look, before = m->seen, lines = m->lines, line, queue;
		struct sched_node *n;

		if (!lines || before >= LENT_SEEN)
			break;
		if (number >= m->top) {
			m->look = 0;
			continue;
		}
		line = line_by_number(m, number, &queue);
		n = line ? node_at(line - 1) : NULL;
		if (n && n->serving) {
			lent_leave(m, queue);
			if (m->seen >= LENT_SEEN && before)
				break; /* it has not had the whole of it: the next look begins with it */
		}
		m->look = number + 1;
		m->lines = lines - 1;
	}
}
