/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Thread: which container a thread is scheduled for, and where it waits.
 *
 * Problem: the scheduler is asked about a thread before the switch has stored the record of the one that ran.
 * How: the record of the thread that a CPU has noted is that CPU's working copy; of every other thread it is the stored one,
 * with a request that was left for it. The kernel's own threads are outside of the tree: they go first, since what they do is
 * everybody's.
 * Limits: a request from outside for a running thread counts from the boundary on at which its CPU takes it.
 */
#pragma once

#include "limit.bpf.h"
#include "numbers.bpf.h"

/* The CPU that it runs on, or is to. */
static __always_inline __u32 cpu_of(struct task_struct *p)
{
	return bpf_core_field_exists(p->thread_info.cpu) ? p->thread_info.cpu : scx_bpf_task_cpu(p);
}

/* The container with a living chain upwards that the thread works for; the root: nobody manages it. */
__noinline __u32 container_of_thread(struct task_struct *p __arg_trusted)
{
	struct fief_cpu *cs = cpu_at(scx_bpf_task_cpu(p));
	struct fief_task *v;
	struct fief_ref to;

	if (cs && cs->has_task && cs->running == p->pid) {
		to = cs->task.binding;
	} else {
		v = record_of(p);
		if (!v || v->made != RECORD_MADE)
			return FIEF_ROOT;
		to = v->binding;
		__u64 request = v->request;
		if (request && request != REQUEST_CLOSED) {
			to.id = REQUEST_ID(request);
			to.generation = request >> 32;
		}
	}
	return container_get(to) ? to.id : FIEF_ROOT;
}

#define RANK_HELD (~0u)

/*
 * How much a thread may be kept waiting: 0 if a container on the way up has priority 0, else one more than the priority of the
 * topmost. This only decides whether to take the CPU from the thread that has it; the order is that of the tree. RANK_HELD, if that is
 * asked for: a limit on the way is used up.
 */
static __always_inline __u32 rank_walk(__u32 id, bool by_limits)
{
	__u32 rank = OWN_PRIORITY + 1;
	bool least = false;
	int level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct fief_attributes *a;
		struct sched_node *n;

		if (!c || id == FIEF_ROOT)
			break;
		a = attributes_of(c);
		n = by_limits && a->limit_ppm ? node_at(id) : NULL;
		if (n && n->period_ns && budget_now(n, c) <= 0)
			return RANK_HELD;
		least |= !a->priority;
		rank = a->priority + 1;
		id = c->parent.id;
	}
	return least ? 0 : rank;
}

__noinline __u32 rank_of(__u32 id)
{
	return rank_walk(id, false);
}

__noinline __u32 rank_unheld(__u32 id)
{
	return rank_walk(id, true);
}

/* It waits in a container's queue, and serves a listener with a queue of requests, or not any more. The lock is held. */
static __always_inline void serving_less(struct sched_waiting *w)
{
	struct sched_machine *m = machine_get();
	struct sched_node *n = w->serving ? node_at(w->serving - 1) : NULL;

	if (!n)
		return;
	w->serving = 0;
	if (n->serving)
		n->serving--;
	if (m->serving)
		m->serving--;
}

static __always_inline void serving_more(struct sched_waiting *w, __u32 id)
{
	struct sched_machine *m = machine_get();
	struct sched_node *n = node_at(id);

	serving_less(w); /* where its last wait ended without the lock */
	if (!n || !w->queue || id == FIEF_ROOT)
		return;
	w->serving = id + 1;
	n->serving++;
	m->serving++;
}

/* It leaves its line's queue, where it is counted, to be let in for a moment (floor.bpf.h); by any CPU, without the lock. */
static __always_inline void late_begins(struct sched_waiting *w)
{
	__u32 of = w->container ?: w->sign ? sign_container(w->sign) + 1 : 0;
	struct sched_node *n = of ? node_at(of - 1) : NULL;

	if (n && !__sync_lock_test_and_set(&w->late, of))
		__sync_fetch_and_add(&n->late, 1);
}

static __always_inline void late_ends(struct sched_waiting *w)
{
	__u32 of = __sync_lock_test_and_set(&w->late, 0);
	struct sched_node *n = of ? node_at(of - 1) : NULL;

	if (n)
		__sync_fetch_and_add(&n->late, -1);
}

/*
 * Whether the thread is counted that was at the front by its sign: else it has left that to run, or is there yet. Who asks has looked at the front
 * before (front_lines()).
 */
static __always_inline bool sign_is_counted(const struct sched_machine *m, const struct sched_waiting *w)
{
	return *(const volatile __u64 *)&m->counted == w->sign;
}

/* Whether a thread that does not wait is counted all the same: its wait ended without the lock. */
static __always_inline bool is_counted(const struct sched_machine *m, const struct sched_waiting *w)
{
	return w->container || (w->sign && sign_is_counted(m, w));
}

/* It is counted no longer where it was. The lock is held. */
static __always_inline void wait_uncounts(struct sched_machine *m, struct sched_waiting *w)
{
	__u32 id;

	if (w->sign && m->counted == w->sign) {
		m->counted = 0;
		line_leave(sign_container(w->sign));
	}
	w->sign = 0; /* else it has left the front to run */
	if (w->container) {
		id = w->container - 1;
		w->container = 0;
		if (w->strays && m->foreign)
			m->foreign--;
		w->strays = 0;
		serving_less(w);
		line_leave(id);
	}
}

/* As wait_end(), of one that is counted, or was at the front. */
__noinline int wait_over(struct sched_waiting *w)
{
	struct sched_machine *m = machine_get();

	if (!w)
		return 0;
	if (w->late)
		late_ends(w);
	if (w->sign && (front_leaves(m, w->sign) || (!w->container && !sign_is_counted(m, w)))) {
		w->sign = 0;
		return 0;
	}
	if (!machine_lock())
		return 0;
	wait_uncounts(m, w);
	machine_unlock(m);
	return 0;
}

/* It waits no longer where it did. */
static __always_inline void wait_end(struct sched_waiting *w)
{
	if (w && (w->container || w->sign))
		wait_over(w);
}

/* The same of one that wakes up: it has run, and so left the front if it was there, unless it is counted yet. */
static __always_inline void wait_woken(const struct sched_machine *m, struct sched_waiting *w)
{
	__u64 sign = w->sign;

	if (sign && front_seen(m) != sign && !sign_is_counted(m, w))
		w->sign = sign = 0;
	if (sign || w->container || w->late)
		wait_over(w);
}

/*
 * In whose line a thread waits whose container, or the one whose part it has, gets no number: as that of the nearest one above its own that gets
 * one. What it does counts as that one's use of the CPU: a line that nothing is charged to would always go first. The lock is held.
 */
static __always_inline __u32 line_climb(struct sched_waiting *w, __u32 id)
{
	__u32 line = line_find(w->foreign ? w->bound : id);

	w->asked = 0;
	w->foreign = 0;
	w->lent = 0;
	w->allocation = ref_of(line);
	return line;
}

/* The same for a thread of any container. */
static __always_inline __u32 line_take(struct sched_waiting *w, __u32 id)
{
	return id == FIEF_ROOT || queue_take(id) != QUEUE_ROOT ? id : line_climb(w, id);
}

/*
 * It waits from now on. Returns the number of the queue; whose that is, the record says. QUEUE_LATE: it could not be counted, and no search
 * would come to where it waits.
 */
__noinline __u32 wait_begin(struct sched_waiting *w, __u32 id, __u64 now)
{
	struct sched_machine *m = machine_get();
	__u32 queue;

	if (!w)
		return QUEUE_LATE;
	if (!w->since_ns)
		w->since_ns = now;
	if (!machine_lock())
		return QUEUE_LATE;
	if (w->container || w->sign) /* its last wait ended without the lock */
		wait_uncounts(m, w);
	front_opens(m);
	queue = queue_take(id);
	if (queue == QUEUE_ROOT && id != FIEF_ROOT) {
		state_count(unqueued);
		id = line_climb(w, id);
		queue = queue_take(id);
	}
	waits_more(id);
	w->strays = w->foreign;
	if (w->strays)
		m->foreign++;
	serving_more(w, id);
	machine_unlock(m);
	w->container = id + 1;
	return queue;
}
