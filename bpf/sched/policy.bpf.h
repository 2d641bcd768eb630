/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Policy: which of a container's own threads goes first.
 *
 * Problem: containers want different orders among their own threads, and another one while they run.
 * How: each container has its policy in its attributes; it says a thread's place in line (line.h), and the kernel's queue is
 * ordered by places. After an exchange, the new policy's places begin behind the furthest that the former one gave, so
 * no thread that waited is forgotten.
 * Limits: a policy orders the threads of one container on all CPUs together, not what is below it.
 */
#pragma once

#include "tree.bpf.h"
#include "object.bpf.h"
#include "policies/edf.h"
#include "policies/fair.h"
#include "policies/fifo.h"
#include "policies/lottery.h"
#include "policies/rr.h"

#define SLICE_LEAST_NS 500000ull
/* between the places of two policies: an object may place threads so far behind its clock */
#define EXCHANGE_NS (OBJECT_REACH_NS + 1000000000ull)
#define POLICY(verb, ...)                                                                                              \
	do {                                                                                                           \
		switch (l->policy) {                                                                                   \
		case FIEF_POLICY_FIFO:                                                                                 \
			fifo_##verb(__VA_ARGS__);                                                                      \
			break;                                                                                         \
		case FIEF_POLICY_RR:                                                                                   \
			rr_##verb(__VA_ARGS__);                                                                        \
			break;                                                                                         \
		case FIEF_POLICY_EDF:                                                                                  \
			edf_##verb(__VA_ARGS__);                                                                       \
			break;                                                                                         \
		case FIEF_POLICY_LOTTERY:                                                                              \
			lottery_##verb(__VA_ARGS__);                                                                   \
			break;                                                                                         \
		case FIEF_POLICY_FAIR:                                                                                 \
			fair_##verb(__VA_ARGS__);                                                                      \
			break;                                                                                         \
		default:                                                                                               \
			object_##verb(__VA_ARGS__);                                                                    \
		}                                                                                                      \
	} while (0)

/* Whose the number is now: the node may still be of the container that had it. */
static __always_inline __u32 generation_of(struct sched_node *n, struct fief_container *c)
{
	return n->linked || n->queued ? n->generation : c->generation;
}

static __always_inline bool line_is_current(struct sched_line *l, __u32 id, __u32 generation, struct fief_attributes *a)
{
	return l->clock && l->container == id && l->generation == generation && l->policy == a->policy &&
	       l->instance == object_instance(a->policy) && l->period_ns == a->period_us * 1000ull &&
	       l->budget_ns == a->budget_us * 1000ull;
}

/* The line as its container wants it now. One CPU does it, and tells the objects that had it and that have it. */
__noinline int line_exchange(__u32 id, __u64 now)
{
	struct sched_machine *m = machine_get();
	struct fief_container *c = container_at(id);
	struct sched_node *n = node_at(id);
	struct fief_attributes *a;
	bool is_other, is_new;
	struct sched_line was;
	struct sched_line *l;
	__u32 generation;

	if (!c || !n || !machine_lock())
		return 0;
	a = attributes_of(c);
	l = &n->line;
	generation = generation_of(n, c);
	if (line_is_current(l, id, generation, a)) {
		machine_unlock(m);
		return 0;
	}
	was = *l;
	is_other = l->container != id || l->generation != generation;
	if (is_other)
		*l = (struct sched_line){.container = id, .generation = generation, .epoch = was.epoch};
	is_new = is_other || l->policy != a->policy || l->instance != object_instance(a->policy);
	if (is_new) {
		l->policy = a->policy;
		l->instance = object_instance(a->policy);
		l->epoch++;
		l->clock = now;
		if (l->furthest)
			l->shift = l->furthest + EXCHANGE_NS - now;
	}
	if (!l->clock)
		l->clock = now;
	l->period_ns = a->period_us * 1000ull;
	l->budget_ns = a->budget_us * 1000ull;
	machine_unlock(m);
	if (is_new && was.policy >= FIEF_POLICY_OBJECT)
		object_turn(&was, NULL, FIEF_TURN_DELETE, now, 0);
	if (l->policy >= FIEF_POLICY_OBJECT)
		object_turn(l, NULL, is_new ? FIEF_TURN_INIT : FIEF_TURN_UPDATE, now, 0);
	return 0;
}

/* The node of a container, with the line of its own threads by the policy that it has now. */
static __always_inline struct sched_node *lined_node(__u32 id, __u64 now)
{
	struct fief_container *c = container_at(id);
	struct sched_node *n = node_at(id);

	if (!c || !n)
		return NULL;
	if (!line_is_current(&n->line, id, generation_of(n, c), attributes_of(c)))
		line_exchange(id, now);
	return n;
}

/* The line in which the thread has a place; NULL: it has none, or that is of another policy or container by now. */
static __always_inline struct sched_line *line_of(const struct sched_waiting *w)
{
	struct sched_node *n = w->of ? node_at(w->of - 1) : NULL;

	return n && w->generation == n->line.generation && w->epoch == n->line.epoch ? &n->line : NULL;
}

/* A place that was given, as the kernel's queue orders it. */
static __always_inline __u64 place_in_queue(struct sched_line *l, const struct line_thread *t)
{
	__u64 place = t->at + l->shift;

	if (!l->furthest || is_before(l->furthest, place))
		l->furthest = place;
	return place;
}

/* The place of a thread that waits in its container's line from now on, as the kernel's queue orders it. */
__noinline __u64 place_take(__u32 id, struct sched_waiting *w __arg_nonnull, __u32 weight, __u64 now)
{
	struct sched_node *n = lined_node(id, now);
	struct line_thread *t = &w->thread;
	struct sched_line *l;

	if (!n)
		return now;
	l = &n->line;
	t->weight = weight;
	if (l->policy == FIEF_POLICY_LOTTERY || l->policy >= FIEF_POLICY_OBJECT)
		t->random = bpf_get_prandom_u32();
	if (w->of != id + 1 || !line_of(w)) {
		w->of = id + 1;
		w->generation = l->generation;
		w->epoch = l->epoch;
		w->fair = l->policy == FIEF_POLICY_FAIR;
		POLICY(begin, l, t, now);
	}
	POLICY(place, l, t, now);
	t->slept = 0;
	return place_in_queue(l, t);
}

/* What it had of the CPU since it was last asked. */
__noinline int place_ran(struct sched_waiting *w __arg_nonnull, __u64 sum_ns)
{
	struct sched_line *l = line_of(w);
	__u64 ns = sum_ns - w->ran_ns;

	w->ran_ns = sum_ns;
	if (l && ns)
		POLICY(ran, l, (&w->thread), ns);
	return 0;
}

/* It begins to run. */
__noinline int place_runs(struct sched_waiting *w __arg_nonnull, __u64 sum_ns)
{
	struct sched_line *l = line_of(w);

	w->ran_ns = sum_ns;
	if (l && is_before(l->clock, w->thread.at))
		l->clock = w->thread.at;
	return 0;
}

/* It lets the others of its line go first. */
__noinline int place_yields(struct sched_waiting *w __arg_nonnull)
{
	struct sched_line *l = line_of(w);

	if (l)
		POLICY(yields, l, (&w->thread));
	return 0;
}

/* Of a thread in its container's line: how long it may run. */
static __always_inline __u64 slice_of(__u32 id, struct sched_waiting *w)
{
	struct sched_node *n = node_at(id);
	__s64 left = w ? w->thread.left : 0;

	if (!n || !w || n->line.policy != FIEF_POLICY_EDF || left > (__s64)SLICE_NS)
		return SLICE_NS;
	return left < (__s64)SLICE_LEAST_NS ? SLICE_LEAST_NS : left;
}

/* Whether a thread that has come to a line by deadlines is to have the CPU of one in it: they are held so. */
static __always_inline bool is_overtaken(const struct sched_place *there, __u32 id, const struct sched_waiting *w)
{
	return there->of == id + 1 && is_before(w->thread.at, there->at);
}
