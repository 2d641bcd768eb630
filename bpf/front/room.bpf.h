/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Room: what may wait where not all can, and what waits no longer.
 *
 * Problem: a class that asks for more than the server gives fills the queue, and the others find no place to wait in.
 * How: of a queue's length each class has its `reserve` for itself, and all together have the rest. Where that is taken, or the
 * memory, the newest of the lowest class that has some of it gives way, never to a worse one. A class at its own length is told
 * that it asks for too much, and nobody else gives way to it. A request that has waited for longer than its class may is refused.
 *
 *   length   | reserve of a | reserve of b |  common: whoever comes first, or is better  |
 *
 * Limits: one within its reserve waits also where the memory is taken; neither helps where all queues together are full.
 *
 * All of this is under the lock of the queue.
 */
#pragma once

#include "queue.bpf.h"

/* 1: so many of the class wait that no more may. Without branches, as class_order(). */
static __always_inline __u32 class_is_long(const struct fief_queue_class *of)
{
	__u64 more = of->length - 1ull - of->waiting;

	more >>= 63;
	barrier_var(more);
	return more;
}

/* 1: one more of the class, which takes so many bytes, may wait without that another one gives way. Likewise. */
static __always_inline __u64 class_has_room(const struct fief_queue *q, const struct fief_queue_class *of, __u32 bytes)
{
	__u64 own = (__u64)of->waiting - of->reserve, common = (__u64)q->shared - q->common;
	__u64 over = q->memory - q->kept - bytes;

	own >>= 63;
	barrier_var(own);
	common >>= 63;
	barrier_var(common);
	over >>= 63;
	barrier_var(over);
	return own | (common & ~over);
}

/* Those in the class's list beyond its reserve, which may have to give way. Without branches, as class_order(). */
static __always_inline __u64 class_excess(const struct fief_queue_class *of)
{
	__u64 excess = (__u64)of->list.linked - of->reserve, within = excess >> 63;

	barrier_var(within);
	return excess & (within - 1);
}

/* The class whose first is too late before all others'; somebody waits. */
static __always_inline __u32 class_latest(struct fief_queue *q)
{
	struct class_least latest = {.least = QUEUE_NEVER};
	__u32 class, end = q->classes;

	for (class = loop_from(0); class < end && can_loop; class ++)
		class_take(&latest, class, queue_class(q, class)->late_ns | class_absent(q, class));
	return latest.class & (FIEF_QUEUE_CLASSES - 1);
}

/* The lowest class that has an excess, and of one level the one that has most; the first class where none has. */
static __always_inline __u32 class_lowest(struct fief_queue *q)
{
	struct class_least lowest = {.least = QUEUE_NEVER};
	__u32 class, end = q->classes;

	for (class = loop_from(0); class < end && can_loop; class ++) {
		const struct fief_queue_class *of = queue_class(q, class);
		__u64 excess = class_excess(of), some = -excess >> 63;
		__u64 at = ((__u64)of->level << 32 | excess) + 1;

		barrier_var(some);
		class_take(&lowest, class, QUEUE_NEVER - (at & -some));
	}
	return lowest.class & (FIEF_QUEUE_CLASSES - 1);
}

/* One that waits is refused: a carrier tells its client. `why`: enum queue_end, perhaps with QUEUE_OVER. */
static __always_inline void queue_refuse(struct fief_queue *q, struct queue_links *links, __u32 class, __u32 at,
					 __u32 why, __u64 now)
{
	struct fief_queue_class *of = queue_class(q, class);

	queue_unlink(q, links, class, at);
	list_append(&q->refusals, links, at, CHAIN_LINE);
	queue_link(links, at)->why = class_is_over(q, of, now) ? why | QUEUE_OVER : why;
	queue_link(links, at)->linked = QUEUE_REFUSALS;
	q->refused++;
	class_left(q, of);
	if ((why & ~QUEUE_OVER) == QUEUE_LATE)
		of->refused_wait++;
	else
		of->refused_full++;
}

/*
 * Whether one that waits has to give way to a newcomer of this class, since there is no room for both. `is_long`: none but one of
 * its own class, which has its length.
 */
static __always_inline bool queue_displace(struct fief_queue *q, struct queue_links *links, const struct queue_turn *to,
					   __u32 is_long, __u64 now)
{
	struct fief_queue_class *of = queue_class(q, to->class), *other;
	__u32 lowest = class_lowest(q), newest;

	lowest ^= (lowest ^ to->class) & -is_long;
	barrier_var(lowest);
	other = queue_class(q, lowest);
	newest = q->fair ? source_newest(other) : other->list.last;
	if (q->fair && lowest == to->class) {
		if (!source_gives_way(of, queue_link(links, newest)->source, to->source))
			return false;
	} else if (is_long || !class_excess(other) || other->level < of->level ||
		   (other->level == of->level && class_excess(other) <= of->waiting - of->reserve + 1ull)) {
		return false;
	}
	queue_refuse(q, links, lowest, newest, QUEUE_DISPLACED | (QUEUE_OVER & -is_long), now);
	return true;
}

/* Refuses the one that is too late before all others. False: none is. */
static __always_inline bool queue_expire(struct fief_queue *q, struct queue_links *links, __u64 now)
{
	__u32 latest;

	if (!q->bits)
		return false;
	latest = class_latest(q);
	q->late_ns = queue_class(q, latest)->late_ns;
	if (now <= q->late_ns)
		return false;
	queue_refuse(q, links, latest, queue_class(q, latest)->list.first, QUEUE_LATE, now);
	return true;
}

#define EXPIRES 64

/* The same with as many as are, so that the server gets none of them. */
static __always_inline void queue_expire_all(struct fief_queue *q, struct queue_links *links, __u64 now)
{
	__u32 i;

	for (i = loop_from(0); i < EXPIRES && can_loop; i++) {
		if (!queue_expire(q, links, now))
			break;
	}
}
