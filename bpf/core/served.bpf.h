/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Served: what a thread works for, as the scheduler is told.
 *
 * Problem: a thread that serves several containers in turn gets the CPU by the allocation of one of them (sched/combined), and works
 * for any of them until it is next asked. Its time is to be charged to whom it works for, and count as the CPU of whom it had it from.
 * How: the scheduler names the container whose allocation the running thread uses. What is charged to another one meanwhile counts
 * there as time of the CPU, and here against limits: a limit is of what a container is charged. The CPU's record gathers whom the
 * thread worked for since the scheduler last looked.
 * Limits: FIEF_SERVED containers from one look to the next, which are a tick apart at most; more push out each other.
 */
#pragma once

#include "excess.bpf.h"
#include "clients.h"
#include "loop.bpf.h"

/* A stint begins. */
static __always_inline void served_begin(struct fief_cpu *cs, struct task_struct *p)
{
	cs->allocation.id = FIEF_NO_ID;
	if (cs->next_thread == (__u64)p)
		cs->allocation = cs->next_allocation;
	cs->served_count = 0;
	cs->served_reset = 0;
	cs->received = 0;
}

/* It has worked on a connection of a client of the listener: others of that one's may wait for it (sched/lent). */
static __always_inline void served_client(struct fief_cpu *cs, __u32 listener, bool received)
{
	if (cs->scheduled && listener != FIEF_NO_LISTENER)
		cs->received = client_noted(cs->received, listener, received);
}

/*
 * What the running thread served before is forgotten. The turn that it has stays whose it was until it is asked again: else a thread
 * that forgets in a loop would never pay for one.
 */
static __always_inline void served_forget(struct fief_cpu *cs)
{
	cs->served_count = 0;
	cs->served_reset = 1;
}

static __always_inline void served_note(struct fief_cpu *cs, struct fief_ref to)
{
	__u32 count = cs->served_count;

	if (!count) {
		cs->served[0] = to;
		cs->served_count = 1;
		return;
	}
	if (same_ref(cs->served[0], to))
		return;
	for (int i = 1; i < FIEF_SERVED; i++) {
		if (i < count && same_ref(cs->served[i], to))
			return;
	}
	/* beyond the room: in turn */
	cs->served[count & (FIEF_SERVED - 1)] = to;
	cs->served_count = count + 1 < 2 * FIEF_SERVED ? count + 1 : FIEF_SERVED;
}

/*
 * Adds to a container and to all above it but the root: the use of its part of the CPU, and what of what is charged does not count against
 * limits (less than 0: work that counts as another's CPU).
 */
static __noinline int counted_up(struct fief_ref to, __u64 charged_ns, __s64 unlimited_ns)
{
	while (can_loop) { /* without a count, which the verifier would follow in each value */
		struct fief_container *c;

		if (to.id == FIEF_ROOT)
			break;
		c = container_get(to);
		if (!c)
			break;
		if (charged_ns)
			__sync_fetch_and_add(&c->charged_ns, charged_ns);
		if (unlimited_ns)
			__sync_fetch_and_add(&c->unlimited_ns, unlimited_ns);
		to = c->parent;
	}
	return 0;
}

/*
 * What a container is charged is its own use of the CPU. Two levels are all that most have: each switch comes here, and a turn of the loop
 * costs as much as what it does. The root's own time is that of threads which nobody manages.
 */
static __always_inline void charged_up(struct fief_ref to, __u64 ns)
{
	struct fief_container *c = container_get(to);

	if (!c)
		return;
	__sync_fetch_and_add(&c->charged_own_ns, ns);
	if (to.id == FIEF_ROOT)
		return;
	__sync_fetch_and_add(&c->charged_ns, ns);
	to = c->parent;
	if (to.id == FIEF_ROOT)
		return;
	c = container_get(to);
	if (!c)
		return;
	__sync_fetch_and_add(&c->charged_ns, ns);
	to = c->parent;
	if (to.id != FIEF_ROOT)
		counted_up(to, ns, 0);
}

/* Whether the scheduler goes by what the container is charged. */
static __always_inline bool is_scheduled(__u32 id)
{
	return id == FIEF_ROOT || id - FIEF_USERS < FIEF_NO_ID - FIEF_USERS;
}

/* Time that a container is charged counts for the scheduler. */
static __always_inline void charged_gather(struct fief_cpu *cs, struct fief_ref to, __u64 ns)
{
	struct fief_ref from = cs->allocation;
	struct fief_container *c;

	if (cs->receive) { /* not the thread's own work */
		charged_up(to, ns);
		if (!cs->discards)
			excess_count(to, ns, cs->last_ns);
		return;
	}
	if (to.id != FIEF_ROOT)
		served_note(cs, to);
	c = same_ref(from, to) || from.id == FIEF_NO_ID ? NULL : container_get(from);
	if (!c) {
		charged_up(to, ns);
		return;
	}
	__sync_fetch_and_add(&c->charged_own_ns, ns);
	counted_up(from, ns, ns);
	counted_up(to, 0, -ns);
}
