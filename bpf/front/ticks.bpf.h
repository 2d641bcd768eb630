/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ticks: time, while somebody waits.
 *
 * Problem: a place runs out, or a request has waited for too long, and no packet comes whose program could see to it.
 * How: a carrier also goes to an interface of ours that lets one packet go every 2 ms, and comes back at its other end. There it
 * kicks the queue, and goes round once more as long as somebody waits, or a request may not have reached TCP (carried.bpf.h). A
 * queue has one of these, which bears the time when it was sent: one that was lost is replaced, and ends should it come all the same.
 * Limits: all queues share the interface, so where many have somebody that waits each is told the time less often. Where there
 * is no such interface, or the link of the packet at hand is no Ethernet, two of those that wait are told the time by their
 * clients (waiting.bpf.h).
 */
#pragma once

#include "places.bpf.h"

#define CARRIER_LEAST 128	 /* bytes: what a carrier is cut to before it is known what it becomes */
#define FROM_CLOCK    (1u << 15) /* beside a queue's number: has come back */

/* Whether the queue has a clock that packets of this link can be sent to. */
static __always_inline bool has_clock(const struct fief_queue *q, const struct packet *p)
{
	return q->clock && p->network >= sizeof(struct ethhdr);
}

/* Whether nothing is on its way that would tell the queue the time. The atomic read comes behind what was put in line. */
static __always_inline bool is_timeless(struct fief_queue *q, __u64 now)
{
	return q->clock && (__s64)(now - __sync_fetch_and_add(&q->tick_ns, 0)) > TICK_LOST_NS;
}

/* For the server, or to be told that it is refused; or went to the server, and may not have reached it. */
static __always_inline bool somebody_waits(const struct fief_queue *q)
{
	return *(const volatile __u32 *)&q->bits | *(const volatile __u32 *)&q->refused |
	       *(const volatile __u32 *)&q->carried.linked;
}

#define TICK_AT (CARRIER_LEAST - 8) /* where a packet that is sent round bears the time of that */

/*
 * A carrier has come back. False: another one was sent round since, and goes on instead. Who lines up from now on sees that none
 * is on its way, or is seen by tick_send().
 */
static __noinline bool tick_back(struct __sk_buff *skb, struct fief_queue *q)
{
	__u64 stamp = 0;

	if (bpf_skb_load_bytes(skb, TICK_AT, &stamp, sizeof(stamp)) || !stamp)
		return false;
	return __sync_val_compare_and_swap(&q->tick_ns, stamp, 0) == stamp;
}

/* A carrier has come, cut to its least. A copy of it is sent round, if somebody waits and none is on its way. */
static __noinline int tick_send(struct __sk_buff *skb, struct fief_queue *q, __u32 number, __u64 now)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	__u64 before = *(volatile __u64 *)&q->tick_ns;
	long failed;

	if ((__u16)(buffer->network_header - buffer->mac_header) < sizeof(struct ethhdr))
		return 0;
	if (!is_timeless(q, now) || !somebody_waits(q))
		return 0;
	if (__sync_val_compare_and_swap(&q->tick_ns, before, now) != before)
		return 0;
	if (bpf_skb_store_bytes(skb, TICK_AT, &now, sizeof(now), BPF_F_RECOMPUTE_CSUM))
		return 0;
	skb->tc_index = number | FROM_CLOCK;
	failed = bpf_clone_redirect(skb, q->clock, 0);
	skb->tc_index = number;
	if (failed)
		__sync_val_compare_and_swap(&q->tick_ns, now, 0);
	if (failed && failed != -ENOMEM)
		q->clock = 0; /* gone, or down: clients are the clock until the next policy */
	return 0;
}

/*
 * Nobody listens: those that wait are told by the clock alone, as they were acknowledged, and say nothing. The packet that tells the time may
 * have been lost.
 */
static __noinline int tick_wake(struct __sk_buff *skb, __u32 number, __u64 now)
{
	struct fief_queue *q = queue_get(number);

	if (q && somebody_waits(q) && is_timeless(q, now))
		queue_kick(skb, q, number);
	return 0;
}
