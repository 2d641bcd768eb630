/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ended: a queue that a new policy does not name, while requests wait in it.
 *
 *   FIEF_TOLD_OPEN      they go to the server, as soon as that takes them
 *   FIEF_TOLD_REFUSE    those that it does not take in time are refused, as if they had waited for too long
 *   FIEF_TOLD_FORGET    those that cannot be told so are forgotten, and those that went to the server (carried.bpf.h); then the queue
 *                       is removed
 *
 * Problem: its number is another queue's next. A request that it leaves behind would be taken out of that one's lists when its client
 * goes away, and be in the middle of nobody's.
 * How: user space says each of the above until nobody is left. All is done under the lock of the queue, as everywhere. One that a
 * carrier has in hand meanwhile is forgotten when it comes back (carrier.bpf.h).
 * Limits: who is forgotten was acknowledged, and hears nothing until it says more.
 */
#pragma once

#include "lined.bpf.h"
#include "room.bpf.h"

/* As many as are refused at once. */
static __noinline int ended_refuse(struct fief_queue *q, struct queue_links *links)
{
	bpf_spin_lock(&q->lock);
	queue_expire_all(q, links, QUEUE_NEVER);
	bpf_spin_unlock(&q->lock);
	return 0;
}

/* Forgets the first of those that are refused, or went. False: there is none, or more is put behind it at this moment. */
static __noinline bool ended_forget(struct fief_queue *q, struct queue_links *links)
{
	struct queue_link *link;
	bool goes = false;
	__u32 at;

	bpf_spin_lock(&q->lock);
	q->open |= QUEUE_ENDS;
	at = q->refusals.linked ? q->refusals.first : q->carried.first;
	link = queue_link(links, at);
	if (q->refusals.linked && !(link->flags & LINK_GROWS)) {
		list_remove(&q->refusals, links, at, CHAIN_LINE);
		q->refused--;
		goes = true;
	} else if (!q->refusals.linked && q->carried.linked) {
		list_remove(&q->carried, links, at, CHAIN_LINE);
		goes = true;
	}
	if (goes)
		link->linked = QUEUE_NOWHERE;
	bpf_spin_unlock(&q->lock);
	if (goes)
		waiting_forget(links, at);
	return goes;
}

/* `told`: enum fief_queue_told. How many are still there; nobody misses those that went. */
static __always_inline __u32 ended_tell(struct __sk_buff *skb, __u32 number, __u32 told)
{
	struct fief_queue *q = queue_get(number);
	struct queue_links *links = queue_links();
	int i;

	if (!q || !links)
		return 0;
	if (told == FIEF_TOLD_WAIT)
		q->open = 0;
	else
		q->open |= QUEUE_OPEN;
	if (told == FIEF_TOLD_REFUSE || told == FIEF_TOLD_FORGET)
		ended_refuse(q, links);
	if (told == FIEF_TOLD_FORGET) {
		bpf_for (i, 0, EXPIRES) {
			if (!ended_forget(q, links))
				break;
		}
	} else if (q->open && (q->waiting || q->refused)) {
		queue_kick(skb, q, number);
	}
	return q->waiting + q->refused + (told == FIEF_TOLD_FORGET ? q->carried.linked : 0);
}
