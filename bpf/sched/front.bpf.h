/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Front: the thread that waits alone on the whole machine.
 *
 * Problem: most threads that wake up find nobody that waits. To count such a one in its container's line, to choose that line and to count
 * the thread out again takes the tree's lock three times, and more work than all else that the scheduler does for a switch.
 * How: one word says who waits. A thread that finds nobody puts its sign there and is in no line; as it begins to run it takes the sign
 * back. Both are done without the lock. A thread that comes to wait meanwhile, or a CPU that chooses among lines, turns the word to lines
 * under the lock, and counts the thread in its container's line, of which QUEUE_FRONT is the queue from then on. It says lines until the last
 * one is empty, so one thread at a time has been counted so, and the sign that it was counted by tells it apart from one that has run. That
 * sign is noted before the word is turned, and a thread looks at the word before it looks at the sign.
 *
 *      63             44 43                            0
 *     +-----------------+-------------------------------+
 *     |    container    |  address of the thread / 64   |   0: nobody waits, 1: lines do
 *     +-----------------+-------------------------------+
 * Limits: threads of no container, and all of which there is something to be asked, go to lines (plain.bpf.h).
 */
#pragma once

#include "state.bpf.h"

#define FRONT_NOBODY	0ull
#define FRONT_LINES	1ull
#define FRONT_SELF_BITS 44 /* the kernel's map of memory is shorter than 2^50 bytes */
#define FRONT_SELF	((1ull << FRONT_SELF_BITS) - 1)

_Static_assert(FIEF_MAX_CONTAINERS <= 1 << (64 - FRONT_SELF_BITS), "a sign has room for a container");

/* Of a thread's address. No two threads have one cache line. */
static __always_inline __u64 front_self(__u64 self)
{
	return self >> 6 & FRONT_SELF;
}

/* `self`: as front_self() */
static __always_inline __u64 front_sign(__u64 self, __u32 id)
{
	return self | (__u64)id << FRONT_SELF_BITS;
}

static __always_inline bool is_sign(__u64 front)
{
	return front > FRONT_LINES;
}

static __always_inline __u32 sign_container(__u64 sign)
{
	return sign >> FRONT_SELF_BITS;
}

/* Whose sign is at the front now, or whether lines wait. */
static __always_inline __u64 front_seen(const struct sched_machine *m)
{
	return *(const volatile __u64 *)&m->front;
}

/* A thread begins to wait alone. False: somebody else waits. */
static __always_inline bool front_enters(struct sched_machine *m, __u64 sign)
{
	__u64 was = __sync_val_compare_and_swap(&m->front, FRONT_NOBODY, sign);

	barrier_var(was); /* else the compiler makes a number of the comparison, and compares that */
	return was == FRONT_NOBODY;
}

/* It waits no longer. False: it was counted in a line meanwhile, or has left before. */
static __always_inline bool front_leaves(struct sched_machine *m, __u64 sign)
{
	__u64 was = __sync_val_compare_and_swap(&m->front, sign, FRONT_NOBODY);

	barrier_var(was);
	return was == sign;
}

/* Whether a thread of the container waits alone: it is not counted among those of its line. */
static __always_inline bool front_is_of(const struct sched_machine *m, __u32 id)
{
	__u64 front = front_seen(m);

	return is_sign(front) && sign_container(front) == id;
}
