/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Turns: in which of several lines a thread's turn comes first, and whether it can have a turn of another container than it works for.
 *
 * Problem: the tree is ordered from the root down, and the lines that a thread may wait in lie anywhere in it.
 * How: both are compared where they part, as pick would order them there now; nothing is written.
 */
#pragma once

#include "numbers.bpf.h"
#include "pick.bpf.h"

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
		at = p->own_at + stride_weight(pc->charged_own_ns, OWN_WEIGHT);
		s->at = within_weight(at, clock_seen(p, OWN_PRIORITY, CLOCK_REST, at), OWN_WEIGHT, lead_now());
		return 0;
	}
	a = attributes_of(c);
	at = n->generation == c->generation ? n->at : 0;
	s->priority = a->priority;
	s->share = a->share_ppm;
	if (a->share_ppm) {
		at += stride(c->charged_ns, a->share_ppm);
		s->at = within_part(at, clock_seen(p, a->priority, CLOCK_SHARES, at), a->share_ppm, lead_now());
	} else {
		at += stride_weight(c->charged_ns, a->weight);
		s->at = within_weight(at, clock_seen(p, a->priority, CLOCK_REST, at), a->weight, lead_now());
	}
	return 0;
}

/* Where the children without a share stand, as one. */
static __always_inline __u64 rest_stands(__u32 id, __u32 priority)
{
	struct fief_container *c = container_at(id);
	struct sched_node *n = node_at(id);
	__u64 rest, at;

	if (!c || !n)
		return 0;
	rest = rest_part(id, c);
	at = group_seen(n, priority);
	return within_part(at, clock_seen(n, priority, CLOCK_SHARES, at), rest, lead_now());
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
	rest = rest_stands(a, of_a.priority);
	return of_a.share ? is_before(of_a.at, rest) : is_before(rest, of_b.at);
}

/*
 * Brings the budgets on the way up to date: nobody looks at those of a container in whose line no thread waits. `waits`: until they are;
 * else a CPU that has the lock now leaves them as they were last known.
 */
__noinline int budgets_settle(__u32 id, __u64 now, __u32 waits)
{
	struct sched_machine *m = machine_get();
	int level;

	bpf_for (level, 0, LEVELS) {
		struct fief_container *c = container_at(id), *pc;
		struct fief_attributes *a;
		struct sched_node *n, *p;

		if (!c || id == FIEF_ROOT)
			break;
		a = attributes_of(c);
		pc = container_at(c->parent.id);
		if (a->limit_ppm && pc) {
			if (!(waits ? machine_lock() : machine_try()))
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
		if (cpu != but && place_at(cpu)->own == id + 1) {
			runs = 1;
			break;
		}
	}
	return runs;
}

/* Whether a thread of a CPU, apart from the one that asks, has the container's turn and works for another one. */
__noinline int turn_runs(__u32 id, __u32 but)
{
	__u32 cpu;
	int runs = 0;

	bpf_for (cpu, 0, cpu_count) {
		if (cpu != but && place_at(cpu)->turn == id + 1) {
			runs = 1;
			break;
		}
	}
	return runs;
}

/* Whether its limit is used up, also where nobody has looked at it for long. A thread that goes on is looked at again soon (leaves.bpf.h). */
static __always_inline bool turn_is_over(__u32 id, __u64 now)
{
	if (!is_held(id))
		return false;
	budgets_settle(id, now, false);
	return is_held(id);
}

/*
 * Whether a thread that works for `bound` can have the turn of `id`, which it is not given: no thread has it that works for
 * that one, its limit is not used up, and there is a queue for its line.
 */
__noinline int turn_is_free(__u32 id, __u32 bound, __u32 but, __u64 now)
{
	/* what lies above is no other part: the turn of its own threads is theirs */
	if (branch_of(bound, id) >= 0)
		return 0;
	if (own_waits(id) || runs_for(id, but) || !number_is_left(id))
		return 0;
	return !turn_is_over(id, now);
}
