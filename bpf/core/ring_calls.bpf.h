/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Calls on rings: a thread says where its ring is, and which containers it may name there (ring.bpf.h).
 *
 * Problem: a container that a thread could name by a number would be anybody's.
 * How: the thread puts a container in a place of its ring by the container's descriptor, with the right to use it. The ring
 * holds the container as a bound thread does. Every call takes the records that were written before it, so a place means
 * what it meant when they were written.
 * Limits: only the operator (root that may administer the machine) may open a ring, since a drain's cost falls on the next thread
 * and is chosen by the writer of the records. One ring a thread, FIEF_RINGS of all threads; a thread that gets none binds by calls.
 */
#pragma once

#include "caller.bpf.h"
#include "descriptors.bpf.h"

/* A free entry, by number + 1; 0: there is none. */
static __noinline __u32 ring_claim(void)
{
	__u32 turn, begin = bpf_get_prandom_u32(), found = 0;

	bpf_for (turn, 0, FIEF_RINGS) {
		__u32 index = (begin + turn) & (FIEF_RINGS - 1);
		struct fief_ring *ring = bpf_map_lookup_elem(&rings, &index);

		if (!ring)
			break;
		if (!ring->taken && !__sync_lock_test_and_set(&ring->taken, 1)) {
			found = index + 1;
			break;
		}
	}
	return found;
}

/* The thread's own clock, unless both are the same: reading them one after the other takes less. */
#define RING_SAME_CLOCK_NS 1000000

static __always_inline int ring_open(const struct fief_ring_open *open)
{
	__u64 address = open->address, ahead = bpf_ktime_get_ns() - open->now_ns;
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = caller();
	__u32 head, number, index;
	struct fief_ring *ring;
	unsigned long flags;
	int err = -ESRCH;

	if (!cs)
		return -ESRCH;
	if (caller_owner() != FIEF_OWNER_OPERATOR)
		return -EPERM;
	if (cs->task.ring)
		return -EBUSY;
	if (address & (FIEF_RING_ALIGN - 1))
		return -EINVAL;
	if (bpf_probe_read_user(&head, sizeof(head), (void *)address))
		return -EFAULT;
	number = ring_claim();
	if (!number)
		return -ENOSPC;
	index = number - 1;
	ring = bpf_map_lookup_elem(&rings, &index);
	if (!ring)
		return -ENOSPC;
	ring->address = address;
	ring->clock_ns = ahead + RING_SAME_CLOCK_NS < 2 * RING_SAME_CLOCK_NS ? 0 : ahead;
	ring->filled = 1ull << FIEF_RING_HOME;
	ring->tail = head;
	ring->unread = 0;
	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->running == p->pid && !cs->task.ring) {
		charge_until(cs, bpf_ktime_get_ns()); /* readers have seen it: from now on they leave it out */
		cs->task.ring = number;
		cs->task.ring_generation = ring->generation;
		cs->task.flags |= FIEF_TASK_EXPLICIT;
		err = 0;
	}
	record_let_go(cs, &flags);
	if (err)
		ring_end(number, ring->generation);
	return err;
}

/* The calling thread has no ring any more; its binding stays. */
__noinline int ring_close(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	__u32 number = 0, generation = 0;
	struct fief_cpu *cs;
	unsigned long flags;

	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->running == p->pid) {
		number = cs->task.ring;
		generation = cs->task.ring_generation;
		cs->task.ring = 0;
		if (number && same_ref(cs->task.binding, cs->task.home))
			cs->task.flags &= ~FIEF_TASK_EXPLICIT;
	}
	record_let_go(cs, &flags);
	if (!number)
		return -ENXIO;
	return ring_end(number, generation);
}

static __always_inline struct fief_ring *ring_own(void)
{
	struct fief_cpu *cs = caller();

	return cs && cs->task.ring ? ring_at(cs->task.ring, cs->task.ring_generation) : NULL;
}

/* Puts a container into a place, or nothing, and lets go of the one that was there. */
static __always_inline void ring_swap(struct fief_ring *ring, __u32 place, const struct fief_ring_place *to)
{
	__u64 bit = 1ull << place, was = ring->filled;
	__u32 id = ring->places[place].container.id;

	/* another thread of the process may write records meanwhile, which an interrupt takes */
	ring->filled = was & ~bit;
	barrier();
	if (to) {
		ring->places[place] = *to;
		barrier();
		ring->filled = was | bit;
	}
	barrier();
	if (was & bit)
		container_put(id, FIEF_THREAD);
}

static __always_inline bool ring_has_place(__u32 place)
{
	return place != FIEF_RING_HOME && place < FIEF_RING_PLACES;
}

static __always_inline int ring_put(struct fief_descriptor *d, __u32 place)
{
	struct fief_ring_place to = {.container = d->container, .rights = d->rights};
	struct fief_container *c = container_get(d->container);
	struct fief_ring *ring = ring_own();

	if (!ring)
		return -ENXIO;
	if (!ring_has_place(place))
		return -EINVAL;
	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_USE))
		return -EPERM;
	container_hold(c, FIEF_THREAD);
	ring_swap(ring, place_bounded(place), &to);
	return 0;
}

static __always_inline int ring_clear(__u32 place)
{
	struct fief_ring *ring = ring_own();

	if (!ring)
		return -ENXIO;
	if (!ring_has_place(place))
		return -EINVAL;
	ring_swap(ring, place_bounded(place), NULL);
	return 0;
}

/* The thread runs another program, or ends: what it wrote counts, and nothing after. */
static __always_inline int ring_finish(void)
{
	struct fief_cpu *cs = this_thread();

	if (!cs || !ring_counts(cs))
		return 0;
	ring_settle(0);
	ring_close();
	return 0;
}
