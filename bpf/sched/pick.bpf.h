/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Pick: whose thread runs next.
 *
 * Problem: an order of limits, priorities, shares and weights at each of up to 16 levels, for each time that a CPU is free.
 * How: from the root down, one child of each container is chosen, and its own threads count as one child more. A child whose
 * limit is used up is passed over. Of the others the highest priority goes first. Among equals that is the one which is most
 * behind its share; all without a share stand there as one, and among themselves the one most behind its weight is chosen. A
 * branch that leads to nothing is marked with the number of the search, and the search begins again.
 * Limits: CHILDREN_SEEN waiting children of a container at a time. The next choice goes on behind them, so that of more
 * children all have their turn, though not in order. Where none of them is to be chosen, a search leaves the others out and looks elsewhere; it
 * goes round all of the root's. If it finds nothing so, another one follows that is thorough and goes round all that there are.
 */
#pragma once

#include "clocks.bpf.h"
#include "limit.bpf.h"
#include "tree.bpf.h"

#define CHILDREN_SEEN 128
#define PICK_NONE     (-1)
#define PICK_AGAIN    (-2)
#define PICK_ON	      (-3) /* nor is one of those to be chosen that were looked at; there are others */

struct best {
	__u32 share; /* the child with a share that is most behind; 0: none */
	__u32 rest;  /* the one without; 0: none, or the container's own threads */
	__u32 has_rest;
	__s32 priority; /* of these */
	__u64 share_at;
	__u64 rest_at;
};

static __always_inline void best_offer(struct best *b, __u32 id, __u32 priority, bool share, __u64 at)
{
	if ((__s32)priority < b->priority)
		return;
	if ((__s32)priority > b->priority) {
		b->priority = priority;
		b->share = 0;
		b->has_rest = 0;
	}
	if (share) {
		if (!b->share || is_before(at, b->share_at)) {
			b->share = id;
			b->share_at = at;
		}
	} else if (!b->has_rest || is_before(at, b->rest_at)) {
		b->has_rest = 1;
		b->rest = id;
		b->rest_at = at;
	}
}

/* No further from where its siblings of its priority are than a child may be. */
static __always_inline void child_place(struct sched_node *n, struct fief_attributes *a, struct sched_node *parent)
{
	__u64 clock = clock_seen(parent, a->priority, a->share_ppm ? CLOCK_SHARES : CLOCK_REST, n->at);

	if (a->share_ppm)
		n->at = within_part(n->at, clock, a->share_ppm, lead_now());
	else
		n->at = within_weight(n->at, clock, a->weight, lead_now());
}

/* The same for its own threads, as one of its children; */
static __always_inline void own_place(struct sched_node *n)
{
	n->own_at =
	    within_weight(n->own_at, clock_seen(n, OWN_PRIORITY, CLOCK_REST, n->own_at), OWN_WEIGHT, lead_now());
}

/* and for all of its children without a share, as one. */
static __always_inline void rest_place(struct sched_node *n, __u32 priority, __u64 rest)
{
	__u64 *at = group_of(n, priority), *clock = clock_of(n, priority, CLOCK_SHARES, *at);

	*at = within_part(*at, *clock, rest, lead_now());
}

/*
 * A child with a share, which stands at `at`, is chosen. Not in the place of one that had no thread for this CPU: who goes through all that
 * wait would bring the clock to the one that is furthest ahead, and those behind it would lose what they are to have.
 */
static __always_inline void share_goes(struct sched_node *n, __u32 priority, __u64 at, bool first)
{
	__u64 *clock = clock_of(n, priority, CLOCK_SHARES, at);

	if (first && is_before(*clock, at))
		*clock = at;
}

/* One without. */
static __always_inline void rest_goes(struct sched_node *n, __u32 priority, __u64 at, bool first)
{
	__u64 *clock = clock_of(n, priority, CLOCK_REST, at);

	share_goes(n, priority, *group_of(n, priority), first);
	if (first && is_before(*clock, at))
		*clock = at;
}

/*
 * One that was chosen in the place of others has a thread for this CPU: the clocks on its way follow it after all. The lock is held. Of its
 * own threads, on all of the way up.
 */
__noinline int tree_goes(__u32 id)
{
	struct sched_node *n = node_at(id), *parent;
	int level;

	if (n)
		rest_goes(n, OWN_PRIORITY, n->own_at, true);
	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct fief_attributes *a;

		n = node_at(id);
		parent = n ? node_at(n->parent) : NULL;
		if (!c || !parent || id == FIEF_ROOT)
			break;
		a = attributes_of(c);
		if (a->share_ppm)
			share_goes(parent, a->priority, n->at, true);
		else
			rest_goes(parent, a->priority, n->at, true);
		id = n->parent;
	}
	return 0;
}

/* Looks at one child. Returns the next of the list. */
__noinline __u32 child_offer(__u32 id, struct sched_node *parent __arg_nonnull, __u64 rest, __u64 now,
			     struct best *b __arg_nonnull)
{
	struct sched_machine *m = machine_get();
	struct fief_container *c = container_at(id);
	struct sched_node *n = node_at(id);
	struct fief_attributes *a;

	if (!c || !n)
		return 0;
	if (m->search && n->passed == m->search)
		return n->next; /* and settled by this search */
	a = attributes_of(c);
	if (n->parent != c->parent.id)
		m->moved = id + 1;
	if (!n->first && !own_fits(m, n))
		return n->next;
	node_settle(n, c, a, parent, rest);
	if (a->limit_ppm && !budget_left(n, a->limit_ppm, now)) {
		m->held = 1;
		c->held_ns = now;
		state_count(held);
		return n->next;
	}
	child_place(n, a, parent);
	best_offer(b, id, a->priority, a->share_ppm != 0, n->at);
	return n->next;
}

/*
 * The child that is looked at first. A search goes on where it was: others, whose choice is not a search, go through the list too. What is
 * unlinked meanwhile hands its part on to the next (node_unlink()).
 */
static __always_inline __u32 children_begin(const struct sched_machine *m, struct sched_node *n)
{
	if (!m->search)
		return n->first;
	if (n->search != m->search || !n->ahead) {
		n->search = m->search;
		n->ahead = n->first;
		n->round = n->first;
	}
	return n->ahead;
}

/* The look ends before `child`. If there was one to choose, it is gone round all of them once more before there is none. */
static __always_inline void children_end(const struct sched_machine *m, struct sched_node *n, __u32 child, bool offered)
{
	if (!child)
		return;
	n->first = child;
	if (!m->search)
		return;
	n->ahead = child;
	if (offered)
		n->round = child;
}

/* One level down. Returns the child, or none for the own threads (`own`), or PICK_ON, or PICK_AGAIN: nothing is below. */
__noinline int level_pick(__u32 id, __u64 now, __u32 *own __arg_nonnull)
{
	struct fief_container *c = container_at(id);
	struct sched_node *n = node_at(id);
	struct sched_machine *m = machine_get();
	struct best b = {.priority = -1};
	__u32 child, end;
	bool offered;
	__u64 rest;
	int i;

	if (!c || !n)
		return PICK_AGAIN;
	*own = 0;
	rest = rest_part(id, c);
	own_settle(n, c, rest);
	if (own_fits(m, n) && (!m->search || n->own_passed != m->search)) {
		own_place(n);
		best_offer(&b, 0, OWN_PRIORITY, false, n->own_at);
	}
	child = children_begin(m, n);
	end = m->search ? n->round : child;
	for (i = 0; i < CHILDREN_SEEN && can_loop; i++) {
		if (!child)
			break;
		child = child_offer(child, n, rest, now, &b);
		if (child == end)
			break;
	}
	offered = b.share || b.has_rest;
	children_end(m, n, child, offered);
	if (!offered)
		return child && child != end ? PICK_ON : PICK_AGAIN;
	if (b.has_rest && b.share)
		clock_of(n, b.priority, CLOCK_SHARES, b.share_at); /* the others are placed by it */
	if (b.has_rest)
		rest_place(n, b.priority, rest);
	if (b.share && (!b.has_rest || is_before(b.share_at, group_seen(n, b.priority)))) {
		share_goes(n, b.priority, b.share_at, !m->vain);
		return b.share;
	}
	rest_goes(n, b.priority, b.rest_at, !m->vain);
	if (!b.rest)
		*own = 1;
	return b.rest;
}

/* The container whose own threads are next, PICK_NONE, or PICK_AGAIN. The lock is held, and m->search and m->thorough say of what search it is. */
__noinline int tree_pick(__u64 now)
{
	struct sched_machine *m = machine_get();
	int found = PICK_NONE, level;
	__u32 id = FIEF_ROOT;

	for (level = 0; level < LEVELS && can_loop; level++) {
		__u32 own = 0;
		int child = level_pick(id, now, &own);

		if (child == PICK_AGAIN || child == PICK_ON) {
			struct sched_node *n = node_at(id);

			if (!n || (id == FIEF_ROOT && child == PICK_AGAIN))
				break;
			found = PICK_AGAIN;
			if (!m->search || (child == PICK_ON && (id == FIEF_ROOT || m->thorough)))
				break;
			n->passed = m->search;
			m->left |= child == PICK_ON;
			break;
		}
		if (own) {
			found = id;
			break;
		}
		id = child;
	}
	if (m->moved) {
		moved_joins(m);
		if (found == PICK_NONE)
			found = PICK_AGAIN;
	}
	return found;
}
