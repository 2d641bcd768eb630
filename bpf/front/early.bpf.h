/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Early: a packet that cannot be ruled before another one has reached TCP goes round its interface, and comes again behind that.
 *
 * Problem: packets of one batch pass here before the first of them has reached TCP, and those of one connection may come on two
 * CPUs. What came too early was dropped, and came again by its client's timeout, 0.2 s later.
 * How: a copy goes to the receiving side of the interface, as a carrier does (carrier.bpf.h), with another mark and the number
 * of its rounds. What it waits for takes microseconds.
 * Limits: above ROUNDS_MOST of a packet, or ROUNDS_IN_TIME of a CPU (ROUNDS_NEEDED for first bytes), it is for the client to send again. The second bound
 * holds where another program takes our mark off. Captures at the interface show the copies.
 */
#pragma once

#include "maps/queues.bpf.h"

#define ROUNDS_MOST    8
#define ROUNDS_IN_TIME 16
#define ROUNDS_NEEDED  256 /* the same for first bytes, which all have to go round (stray.bpf.h) */
#define ROUNDS_SHIFT   20  /* of a time, 1.05 ms */
#define ROUNDS_AT      0   /* where the programs of a packet find its rounds, in skb->cb */

struct rounds {
	__u64 time;
	__u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rounds);
} early_rounds SEC(".maps");

static __always_inline __u32 early_mark(void)
{
	return ~queue_mark();
}

/* A packet has come: its rounds, without the mark that nobody else is to see. */
static __always_inline void early_read(struct __sk_buff *skb)
{
	skb->cb[ROUNDS_AT] = 0;
	if (!skb->mark || skb->mark != early_mark())
		return;
	skb->cb[ROUNDS_AT] = skb->tc_index;
	skb->mark = 0;
	skb->tc_index = 0;
}

/* Whether a copy of the packet comes again at once, if there were fewer. The one at hand must not bring its bytes to TCP then. */
__noinline int early_send_of(struct __sk_buff *skb, __u32 most)
{
	__u32 zero = 0, mark = skb->mark, index = skb->tc_index, rounds = skb->cb[ROUNDS_AT];
	struct rounds *here = bpf_map_lookup_elem(&early_rounds, &zero);
	__u64 time = bpf_ktime_get_ns() >> ROUNDS_SHIFT;
	long failed;

	if (!here || rounds >= ROUNDS_MOST || !queue_mark())
		return 0;
	if (here->time != time) {
		here->time = time;
		here->count = 0;
	}
	if (here->count >= most)
		return 0;
	here->count++;
	skb->mark = early_mark();
	skb->tc_index = rounds + 1;
	failed = bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
	skb->tc_index = index;
	return !failed;
}

static __always_inline int early_send(struct __sk_buff *skb)
{
	return early_send_of(skb, ROUNDS_IN_TIME);
}
