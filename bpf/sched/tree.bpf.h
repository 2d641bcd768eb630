/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tree: which containers have waiting threads, and what they had of the CPU.
 *
 * Problem: most containers wait for nothing, and there may be a million; children come and go while the CPU is given away.
 * How: a container is in its parent's list while one of its own threads waits, or a child is in its own list. Of one that waits alone on
 * the whole machine only its number is noted, since it need not be chosen among others (alone.bpf.h). What was charged
 * gathers in the containers (core/charge), for the whole way up, and is settled when the list is looked through.
 * Limits: a container that is given another parent moves when its next thread begins to wait, or a search comes to it: what stands above
 * threads that wait without end, below a former parent that has no turn, moves when that has one.
 */
#pragma once

#include "clocks.bpf.h"

#define LEVELS (FIEF_MAX_DEPTH + 1)

/* The node of a container; fresh if the slot is another container's now. The lock is held. */
static __always_inline struct sched_node *node_get(__u32 id, struct fief_container *c)
{
	struct sched_node *n = node_at(id);
	struct sched_line line;
	__u32 queue, numbers;

	if (n && n->generation != c->generation && !n->linked && !n->queued) {
		queue = n->queue;
		numbers = n->numbers;
		line = n->line;
		__builtin_memset(n, 0, sizeof(*n));
		n->queue = queue; /* it is this number's still */
		n->numbers = numbers;
		n->line = line; /* whose order is still to be told (policy.bpf.h) */
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

/* One more thread of the container waits. The lock is held. */
__noinline int waits_more(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct fief_container *c = container_at(id);
	struct sched_node *n = c ? node_get(id, c) : NULL;

	if (!m || !n)
		return 0;
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

/* One fewer. */
__noinline int waits_less(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct sched_node *n = node_at(id);

	if (!m || !n || !n->queued || --n->queued)
		return 0;
	if (m->lined)
		m->lined--;
	if (m->alone == id + 1)
		m->alone = 0;
	else
		node_leave(id);
	return 0;
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
