/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Numbers: which containers have a queue of the kernel's for their own threads, and where the threads of the others wait.
 *
 * Problem: queues are made when the scheduler begins (docs/why.md), so there are QUEUES of them. A user may have as many containers with
 * waiting threads, and then all others would find none, also those of the policy. A limit of next to nothing keeps threads waiting for
 * ever, and numbers with them.
 * How: a container has a number while a thread of its own waits. The last NUMBERS_NAMED free ones are for what the operator named,
 * NUMBERS_USERS before these also for the users' own parents (user/<uid>). Of the rest, what applications and programs made gets one while
 * its party has no more than are left to all others, NUMBERS_FEW apart. Of those too it gets one while it has less than one in FEW_PART
 * of what is left. So one party leaves others as many, and when six have taken all that they can, the seventh has 32, and the
 * sixtieth still one. A party is the nearest container above that the operator named, or a user's own; else the root. A thread whose container gets
 * no number waits in the line of the nearest one above that gets one, as a thread of that one (climbs.bpf.h).
 * Limits: the shares and priorities of what is between do not hold meanwhile. One who has several named containers counts as several
 * parties, and so does one who has several users. Of very many at once some find no number, and then some of user/<uid> none; their
 * threads wait in the line of `user`. Where the operator's own containers take all numbers, theirs wait with those that nobody manages.
 */
#pragma once

#include "tree.bpf.h"

#define NUMBERS_NAMED 1024
#define NUMBERS_USERS 256
#define NUMBERS_FEW   512
#define FEW_PART      16
/* While more are free, nobody is refused one. */
#define NUMBERS_PLENTY	((QUEUES + NUMBERS_NAMED + NUMBERS_USERS + NUMBERS_FEW) / 2)
#define NUMBER_NONE	(-1)
#define CONTAINER_NAMED (FIEF_CONTAINER_POLICY | FIEF_CONTAINER_UNIT)
#define CONTAINER_PARTY (CONTAINER_NAMED | FIEF_CONTAINER_USER)

static __always_inline __u32 party_of(const struct fief_container *c)
{
	__u32 party = FIEF_ROOT;
	int level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		__u32 id = c->parent.id;

		c = container_at(id);
		if (!c || id < FIEF_FIRST_ID)
			break;
		if (c->flags & CONTAINER_PARTY) {
			party = id;
			break;
		}
	}
	return party;
}

/* Whether a party that has so many numbers gets another one. */
static __always_inline bool party_gets(const struct sched_machine *m, __u32 has)
{
	__u32 left = m->free > NUMBERS_NAMED + NUMBERS_USERS ? m->free - NUMBERS_NAMED - NUMBERS_USERS : 0;

	return has + NUMBERS_FEW < left || has * FEW_PART < left;
}

/* The party that a number for the container counts for: its id + 1; 0: none; NUMBER_NONE: the container gets none. */
__noinline int number_counts_for(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct fief_container *c = container_at(id);
	struct sched_node *n;
	__u32 party;

	if (!c || !m->free)
		return NUMBER_NONE;
	if (id < FIEF_FIRST_ID || c->flags & CONTAINER_NAMED)
		return 0;
	if (c->flags & FIEF_CONTAINER_USER)
		return m->free > NUMBERS_NAMED ? 0 : NUMBER_NONE;
	party = party_of(c);
	n = node_at(party);
	return n && party_gets(m, n->numbers) ? party + 1 : NUMBER_NONE;
}

/* Whether a thread that comes to wait for the container would find a number, by what is known without the lock. */
static __always_inline bool number_is_left(__u32 id)
{
	struct sched_machine *m = machine_get();

	return m->free > NUMBERS_PLENTY || number_counts_for(id) != NUMBER_NONE;
}

/* The number of the queue of a container's own threads; QUEUE_ROOT: it gets none. The lock is held, and the front is open. */
__noinline __u32 queue_take(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct sched_node *n = node_at(id), *party;
	struct sched_queue *q;
	__u32 *number, at;
	int counts;

	if (id == FIEF_ROOT || !n)
		return QUEUE_ROOT;
	if (n->queue)
		return n->queue - 1;
	counts = number_counts_for(id);
	if (counts == NUMBER_NONE)
		return QUEUE_ROOT;
	at = m->free - 1;
	number = bpf_map_lookup_elem(&sched_free, &at);
	q = number ? queue_at(*number) : NULL;
	if (!q)
		return QUEUE_ROOT;
	party = counts ? node_at(counts - 1) : NULL;
	if (party)
		party->numbers++;
	m->free = at;
	if (m->top <= *number)
		m->top = *number + 1;
	q->container = id;
	q->counts = counts;
	q->taken = 1;
	n->queue = *number + 1;
	return *number;
}

__noinline int queue_return(__u32 id)
{
	struct sched_machine *m = machine_get();
	struct sched_node *n = node_at(id), *party;
	struct sched_queue *q;
	__u32 *number, at;

	if (!n || n->queued || !n->queue)
		return 0;
	if (n->queue == QUEUE_FRONT + 1) {
		n->queue = 0;
		m->front_of = 0;
		return 0;
	}
	at = m->free;
	number = bpf_map_lookup_elem(&sched_free, &at);
	q = queue_at(n->queue - 1);
	if (!number || !q)
		return 0;
	party = q->counts ? node_at(q->counts - 1) : NULL;
	if (party && party->numbers)
		party->numbers--;
	*number = n->queue - 1;
	m->free = at + 1;
	q->taken = 0;
	n->queue = 0;
	return 0;
}

/*
 * Of the lines with a queue, by number from 0 to below `top`: the container, its id + 1; 0: none has it. In the place of the root's, which is
 * in no look, is the one whose queue is that of the front; `queue` is its number.
 */
static __always_inline __u32 line_by_number(const struct sched_machine *m, __u32 number, __u32 *queue)
{
	struct sched_queue *q;

	*queue = number == QUEUE_ROOT ? QUEUE_FRONT : number;
	if (number == QUEUE_ROOT)
		return m->front_of;
	q = queue_at(number);
	return q && q->taken ? q->container + 1 : 0;
}

/* One thread fewer waits in the container's line, which may need its number no longer. The lock is held. */
static __always_inline void line_leave(__u32 id)
{
	waits_less(id);
	queue_return(id);
}

/*
 * The container in whose line a thread of `id` waits from now on. It has a number, or is the root. Once one is refused, so are those above that
 * are not named, and need not be asked for. The lock is held.
 */
__noinline __u32 line_find(__u32 id)
{
	__u32 found = FIEF_ROOT;
	bool refused = false, named;
	int level;

	for (level = 0; level < LEVELS && can_loop; level++) {
		struct fief_container *c = container_at(id);
		struct sched_node *n = node_at(id);

		if (!c || !n || id == FIEF_ROOT)
			break;
		named = id < FIEF_FIRST_ID || c->flags & CONTAINER_PARTY;
		if (n->queue || ((named || !refused) && queue_take(id) != QUEUE_ROOT)) {
			found = id;
			break;
		}
		refused = true;
		id = c->parent.id;
	}
	return found;
}
