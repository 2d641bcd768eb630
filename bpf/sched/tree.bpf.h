/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tree: which containers have waiting threads, and what they had of the CPU.
 *
 * Problem: most containers wait for nothing, and there may be a million; children come and go while the CPU is given away.
 * How: a container is in its parent's list while one of its own threads waits, or a child is in its own list. Of one that waits alone on
 * the whole machine only its number is noted, since it need not be chosen among others (alone.bpf.h), and a thread that does is in no line
 * (front.bpf.h). Charges gather in the containers (core/charge), for the whole way up, and are settled when the list is looked through.
 * Limits: a container that is given another parent moves when its next thread begins to wait, or a search comes to it: what stands above
 * threads that wait without end, below a former parent that has no turn, moves when that has one.
 */
#pragma once

#include "clocks.bpf.h"
#include "fits.bpf.h"
#include "front.bpf.h"

#define LEVELS	    (FIEF_MAX_DEPTH + 1)
#define FRONT_TRIES 16

/* The node of a container; fresh if the slot is another container's now. The lock is held. */
static __always_inline struct sched_node *node_get(__u32 id, struct fief_container *c)
{
	struct sched_node *n = node_at(id);

	/*
	 * The rest stays: the queue is this number's still, the thread at the front may be late, which others count without the lock, and
	 * the line's order is still to be told (policy.bpf.h).
	 */
	if (n && n->generation != c->generation && !n->linked && !n->queued) {
		__builtin_memset(n, 0, __builtin_offsetof(struct sched_node, queue));
		n->generation = c->generation;
	}
	return n;
}

/* What the children without a share have of the parent, and what the parent has, both in its own terms. */
static __always_inline __u64 rest_part(__u32 id, struct fief_container *c)
{
	struct fief_attributes *a = attributes_of(c);
	__u64 whole = id == FIEF_ROOT ? WHOLE : a->share_ppm;

	return whole ? rest_of(whole, a->reserved_ppm + c->reserved_ppm) : WHOLE;
}

/* At the end of the list, which is a ring. */
__noinline int node_link(__u32 id, __u32 parent)
{
	struct sched_node *n = node_at(id), *p = node_at(parent), *first, *last;

	if (!n || !p)
		return 0;
	n->parent = parent;
	n->linked = 1;
	n->next = id;
	n->prev = id;
	first = p->first ? node_at(p->first) : NULL;
	last = first ? node_at(first->prev) : NULL;
	if (!last) {
		p->first = id;
		return 0;
	}
	n->next = p->first;
	n->prev = first->prev;
	last->next = id;
	first->prev = id;
	return 0;
}

__noinline int node_unlink(__u32 id)
{
	struct sched_node *n = node_at(id), *p, *next, *prev;

	if (!n)
		return 0;
	p = node_at(n->parent);
	next = node_at(n->next);
	prev = node_at(n->prev);
	if (p && p->first == id)
		p->first = n->next == id ? 0 : n->next;
	if (p && p->ahead == id)
		p->ahead = n->next == id ? 0 : n->next;
	if (p && p->round == id)
		p->round = n->next == id ? 0 : n->next;
	if (prev)
		prev->next = n->next;
	if (next)
		next->prev = n->prev;
	n->linked = 0;
	return 0;
}

/* It leaves, and what is above it as far as nothing else waits there. */
__noinline int node_leave(__u32 id)
{
	int level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		struct sched_node *n = node_at(id);
		__u32 up;

		if (!n || n->queued || n->first || id == FIEF_ROOT || !n->linked)
			break;
		up = n->parent;
		node_unlink(id);
		id = up;
	}
	return 0;
}

/*
 * A container with waiting threads of its own, and with it what is above it, comes into its parent's list. One that was given another
 * parent leaves the former one's, which leaves its own if nothing else waits there: nothing would ever be charged to it, so it
 * would be the first to be looked at for ever.
 */
__noinline int node_join(__u32 id)
{
	struct fief_container *c = container_at(id);
	int level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		__u32 up, below = id, former = FIEF_ROOT;
		struct sched_node *n;

		if (!c)
			break;
		n = node_get(id, c);
		if (!n)
			break;
		if (id == FIEF_ROOT)
			break;
		up = c->parent.id;
		if (n->linked && n->parent == up)
			break;
		if (n->linked) {
			former = n->parent;
			node_unlink(id);
		}
		id = up;
		c = container_at(id);
		/* before anything is in its list: one of the number's former container would be made anew, and the list lost */
		if (c)
			node_get(id, c);
		node_link(below, id);
		node_leave(former);
	}
	return 0;
}

/* A container that was given another parent while something waited below it, as the last search has seen. The lock is held. */
static __always_inline void moved_joins(struct sched_machine *m)
{
	__u32 moved = m->moved, id;
	int level;

	if (!moved)
		return;
	m->moved = 0;
	node_join(moved - 1);
	/* where it is now, the search may have found nothing before */
	id = moved - 1;
	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct sched_node *n = node_at(id);

		if (!c || !n)
			break;
		n->passed = m->search - 1;
		n->search = m->search - 1;
		if (id == FIEF_ROOT)
			break;
		id = c->parent.id;
	}
}

/* The container that waited alone is in the lists from now on. The lock is held. */
static __always_inline void alone_joins(struct sched_machine *m)
{
	__u32 alone = m->alone;

	if (!alone)
		return;
	m->alone = 0;
	node_join(alone - 1);
}

/* One more thread waits in the container's line. The lock is held. */
__noinline int line_more(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct fief_container *c = container_at(id);
	struct sched_node *n = c ? node_get(id, c) : NULL;

	if (!n)
		return 0;
	fits_again(n);
	if (n->queued++) {
		if (m->alone != id + 1)
			node_join(id); /* it may have been given another parent */
		return 0;
	}
	if (!m->lined++) {
		m->alone = id + 1;
		return 0;
	}
	alone_joins(m);
	node_join(id);
	return 0;
}

/* The thread of that sign, which waited alone, is counted in its container's line. The lock is held, the word says lines, and the sign is noted. */
static __always_inline void front_counts(struct sched_machine *m, __u64 sign)
{
	__u32 id = sign_container(sign);
	struct sched_node *n = node_at(id);

	m->counts++;
	if (!n)
		return;
	line_more(id);
	n->queue = QUEUE_FRONT + 1;
	m->front_of = id + 1;
}

/*
 * The same of one that waits alone yet: the word says lines from now on. False: it has left. While it waits alone no line does, so no other sign is
 * noted. Its own is noted first: a thread that sees its sign neither at the front nor noted has not been counted and is not going to be,
 * however long the CPU is stopped that does this.
 */
static __always_inline bool front_lines(struct sched_machine *m, __u64 sign)
{
	*(volatile __u64 *)&m->counted = sign;
	if (__sync_val_compare_and_swap(&m->front, sign, FRONT_LINES) != sign) {
		*(volatile __u64 *)&m->counted = 0;
		return false;
	}
	front_counts(m, sign);
	return true;
}

/*
 * As front_opens(). Others come to the front and leave it meanwhile; they take longer for that than a try takes. Global: the verifier
 * follows it once. From enqueue down to node_unlink() these are eight functions, and more it does not take.
 */
__noinline int front_turns(void)
{
	struct sched_machine *m = machine_get();
	__u64 front;
	int i;

	for (i = 0; i < FRONT_TRIES && can_loop; i++) {
		front = front_seen(m);
		if (front == FRONT_LINES || (is_sign(front) && front_lines(m, front)) ||
		    (front == FRONT_NOBODY && front_enters(m, FRONT_LINES)))
			return 0;
	}
	front = __sync_lock_test_and_set(&m->front, FRONT_LINES);
	if (is_sign(front)) {
		m->counted = front;
		front_counts(m, front);
	}
	return 0;
}

/*
 * From now on whoever comes finds lines. Before a queue is taken for one: of the line whose thread waits alone it is known already. The lock is
 * held; once it is let go of, a line must wait, or front_closes().
 */
static __always_inline void front_opens(struct sched_machine *m)
{
	if (front_seen(m) != FRONT_LINES)
		front_turns();
}

/* The same if a thread waits alone. */
static __always_inline void front_joins(struct sched_machine *m)
{
	__u64 front = front_seen(m);

	if (is_sign(front))
		front_lines(m, front);
}

/* Where no line waits. */
static __always_inline void front_closes(struct sched_machine *m)
{
	if (!m->lined && front_seen(m) == FRONT_LINES)
		*(volatile __u64 *)&m->front = FRONT_NOBODY;
}

/* One more thread of the container waits. The lock is held. */
static __always_inline void waits_more(__u32 id)
{
	struct sched_machine *m = machine_get();

	front_opens(m);
	line_more(id);
	front_closes(m); /* where there is no such line */
	m->counts++;
}

/* One fewer. */
__noinline int waits_less(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct sched_node *n = node_at(id);

	if (!n || !n->queued || --n->queued)
		return 0;
	if (m->lined)
		m->lined--;
	if (m->alone == id + 1)
		m->alone = 0;
	else
		node_leave(id);
	front_closes(m);
	return 0;
}

/* Whether a thread of the container waits, in its line or alone, by what is known without the lock. */
__noinline int own_waits(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct sched_node *n = node_at(id);

	return !n || n->queued || front_is_of(m, id);
}

/* What the container and all below it had since the last look goes into its virtual time and off its budget. */
static __always_inline void node_settle(struct sched_node *n, struct fief_container *c, struct fief_attributes *a,
					struct sched_node *parent, __u64 rest)
{
	__u64 ns, unlimited;

	if (c->unlimited_ns) {
		unlimited = __sync_lock_test_and_set(&c->unlimited_ns, 0);
		if (a->limit_ppm)
			n->budget += unlimited;
	}
	if (!c->charged_ns)
		return;
	ns = __sync_lock_test_and_set(&c->charged_ns, 0);
	if (a->limit_ppm)
		n->budget -= ns;
	if (a->share_ppm) {
		n->at += stride(ns, a->share_ppm);
	} else {
		n->at += stride_weight(ns, a->weight);
		group_had(parent, a->priority, stride(ns, rest));
	}
}

/* The same for its own threads, as one of its children. */
static __always_inline void own_settle(struct sched_node *n, struct fief_container *c, __u64 rest)
{
	__u64 ns;

	if (!c->charged_own_ns)
		return;
	ns = __sync_lock_test_and_set(&c->charged_own_ns, 0);
	n->own_at += stride_weight(ns, OWN_WEIGHT);
	group_had(n, OWN_PRIORITY, stride(ns, rest));
}
