/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ticks: time, while somebody waits.
 *
 * Problem: a place runs out, or a request has waited for too long, and no packet comes whose program could see to it.
 * How: a carrier also goes to an interface of ours that lets one packet go every 2 ms, and comes back at its other end. There it
 * kicks the queue, and goes round once more as long as somebody waits. A queue has one of these; one that was lost is replaced.
 * Limits: all queues share the interface, so where many have somebody that waits each is told the time less often. Where there
 * is no such interface, or the link of the packet at hand is no Ethernet, two of those that wait are told the time by their
 * clients (waiting.bpf.h).
 */
#pragma once

#include "places.bpf.h"

#define FROM_CLOCK   (1u << 15) /* beside a queue's number: has come back */
#define TICK_LOST_NS 1000000000ull

/* Whether the queue has a clock that packets of this link can be sent to. */
static __always_inline bool has_clock(const struct fief_queue *q, const struct packet *p)
{
	return q->clock && p->network >= sizeof(struct ethhdr);
}

/* Whether nothing is on its way that would tell the queue the time. */
static __always_inline bool is_timeless(struct fief_queue *q, __u64 now)
{
	return q->clock && now - *(volatile __u64 *)&q->tick_ns > TICK_LOST_NS;
}

/* A carrier has come back: who lines up from now on sees that none is on its way, or is seen by tick_send(). */
static __always_inline void tick_back(struct fief_queue *q)
{
	__sync_lock_test_and_set(&q->tick_ns, 0);
}

/* A carrier has come. A copy of it is sent round for the queue, if somebody waits there and none is on its way. */
static __noinline int tick_send(struct __sk_buff *skb, struct fief_queue *q, __u32 number, __u64 now)
{
	__u64 before = *(volatile __u64 *)&q->tick_ns;
	long failed;

	if (!is_timeless(q, now) || !(*(volatile __u32 *)&q->bits | *(volatile __u32 *)&q->refused))
		return 0;
	if (__sync_val_compare_and_swap(&q->tick_ns, before, now) != before)
		return 0;
	skb->tc_index = number | FROM_CLOCK;
	failed = bpf_clone_redirect(skb, q->clock, 0);
	skb->tc_index = number;
	if (failed)
		tick_back(q);
	return 0;
}
