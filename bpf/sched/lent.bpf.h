/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Lent: the turn of a better container whose request waits for this thread (no priority inversion).
 *
 * Problem: a server of one thread works for a container of low priority or share while a request of a better one waits for it. A third
 * container in between, which has nothing to do with either, keeps the CPU from the thread, and so from the better one.
 * How: the thread serves the listener from a client of which it last received, as long as it works for a class of that listener's queue,
 * or for what is below one. Whose requests wait is known by the queue: those in its line, and the last one of each class that the server
 * has got and nobody has worked for since. The classes that wait are lines of the thread's, as those that it served lately are
 * (combined): it takes the one in which its turn comes first. So what it does counts there as use of the CPU, and as a charge where it
 * works; a limit there does not stop it, and the debt is paid off later.
 * A thread that waits already when the request comes is let in for a moment (floor) at the next choice of a CPU, to take that line
 * (leaves): after a slice of the thread that runs there, as ticks round it.
 * Limits: no lock is recognized, since the kernel tells nobody which thread has it (docs/why.md). Only listeners with a queue: elsewhere
 * nothing tells a request from a connection that asks nothing. One thread for each class that waits: where another one has that one's turn
 * there is no other, but where two CPUs choose within the same microseconds. A thread whose slice was lent keeps it when nobody waits any more.
 * Nothing says that a thread still works for a client that it received from: it counts for SERVED_WORK_NS of its CPU time, so a
 * longer request is lent that much; and for ANSWERED_WORK_NS after it answered one and then slept. So a loop that sends to many and never
 * sleeps is lent nothing once it has received from nobody for that long. All debt that is made so is paid: nothing is lent where a moment
 * more would come to more than DEBT_MOST periods of the limit; by a limit below 0.6 % of a CPU nothing is lent on debt. The more threads
 * of a limited container have lent turns at once, the further they go beyond, a tick each.
 */
#pragma once

#include "turns.bpf.h"
#include "waits.h"

/* A thread has worked for the container, and so for what is above it. */
__noinline int worked_note(__u32 id, __u64 now)
{
	int level;

	bpf_for (level, 0, LEVELS) {
		struct fief_container *c = container_at(id);
		struct sched_node *n = node_at(id);

		if (!c || !n || id == FIEF_ROOT)
			break;
		n->worked_ns = now;
		id = c->parent.id;
	}
	return 0;
}

/*
 * Whether the thread, which has had `ran_ns` of the CPU, still serves the listener from a client of which it last received. Not by the
 * time that passes: one that sleeps since nobody asked is to have the turn of the first that asks.
 */
static __always_inline bool listener_lately(const struct sched_waiting *w, __u64 ran_ns)
{
	return w->queue && ran_ns - w->received_ran_ns < SERVED_WORK_NS;
}

/* The class's container, if a request of it waits. */
static __always_inline __u32 waiting_class(const struct fief_queue *q, __u32 class, __u64 now)
{
	const struct fief_queue_class *of = &q->class[class & (FIEF_QUEUE_CLASSES - 1)];
	bool lined = q->bits >> (class & (FIEF_QUEUE_CLASSES - 1)) & 1;
	struct sched_node *n;

	if (!lined && !of->handed_ns)
		return FIEF_NO_ID;
	n = node_at(of->container.id);
	if (!n || !class_waits(of, lined, n->worked_ns, now))
		return FIEF_NO_ID;
	return container_get(of->container) ? of->container.id : FIEF_NO_ID;
}

/* Whether what the thread works for is of the listener's. */
static __always_inline bool is_served_by(const struct fief_queue *q, __u32 bound)
{
	bool served = false;
	__u32 class;

	bpf_for (class, 0, FIEF_QUEUE_CLASSES) {
		if (class >= q->classes)
			break;
		if (branch_of(bound, q->class[class & (FIEF_QUEUE_CLASSES - 1)].container.id) >= 0) {
			served = true;
			break;
		}
	}
	return served;
}

/*
 * Of `best`, on whose allocation the thread can be that works for `bound`, and the containers that wait for it: in whose line its turn
 * comes first.
 */
__noinline __u32 lent_best(__u32 queue, __u32 listener, __u32 bound, __u32 best, __u32 but)
{
	struct fief_queue *q = bpf_map_lookup_elem(&queues, &queue);
	__u64 now = bpf_ktime_get_ns();
	bool held = false, known = false;
	__u32 class;

	if (!q || q->open || q->monitor || q->listener != listener)
		return best;
	bpf_for (class, 0, FIEF_QUEUE_CLASSES) {
		__u32 id;

		if (class >= q->classes)
			break;
		id = waiting_class(q, class, now);
		if (id == FIEF_NO_ID || id == best || id == bound)
			continue;
		if (!known) {
			if (!is_served_by(q, bound))
				break;
			if (turn_is_over(bound, now) && debt_is_full(bound))
				break;
			known = true;
			held = turn_is_over(best, now);
		}
		if (turn_runs(id, but) || !turn_is_free(id, bound, but, now))
			continue;
		if (held || turn_before(id, best)) {
			best = id;
			held = false;
		}
	}
	return best;
}
