/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Handed: what a CPU hands from one program of the door to the next, and which programs these are.
 *
 * Problem: with all its rules the door is more than the verifier follows in one program.
 * How: segments after a SYN are ack_guards', which the door's program tail-calls with the parsed packet; requests that wait are
 * programs' of the queue, which are told what the door knows.
 * Limits: during an upgrade, the door's program may be of one version and the next one's of another.
 */
#pragma once

#include "context.bpf.h"
#include "queue.bpf.h"

int queue_decides(struct __sk_buff *skb);
int queue_carries(struct __sk_buff *skb);
int queue_delivers(struct __sk_buff *skb);

/* As door_programs below. */
enum queue_program { QUEUE_DECIDES, QUEUE_CARRIES, QUEUE_DELIVERS, QUEUE_PROGRAMS };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, QUEUE_PROGRAMS);
	__type(key, __u32);
	__array(values, int(struct __sk_buff *));
} queue_programs SEC(".maps") = {
    .values =
	{
	    [QUEUE_DECIDES] = (void *)&queue_decides,
	    [QUEUE_CARRIES] = (void *)&queue_carries,
	    [QUEUE_DELIVERS] = (void *)&queue_delivers,
	},
};

/* The record for the queue's programs begins with the one for ack_guards. */
static __always_inline struct arrival *queue_arrival(struct queue_handed *handed)
{
	_Static_assert(offsetof(struct queue_handed, slot) == offsetof(struct arrival, slot),
		       "it begins with an arrival");

	return (struct arrival *)handed;
}

/* Whether the verdict is one that the queue's program has to give; it is told what the door knows. */
static __always_inline bool queue_asked(const struct front_context *front, int verdict)
{
	struct queue_handed *to;

	if (verdict < QUEUE_FIRST || verdict > QUEUE_REPEATS)
		return false;
	to = queue_handed_get();
	if (!to)
		return false;
	context_hand(front, queue_arrival(to));
	to->what = verdict;
	to->isolated = front->isolated;
	to->connected = front->connected;
	to->queued = front->queued;
	return true;
}

/* A segment that acknowledges something, or of which nothing but its ports is known. */
static __always_inline bool is_ack(const struct packet *p)
{
	return p->torn || (p->flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK;
}

/* What a CPU hands from one program to the next. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrival);
} handed SEC(".maps");

int ack_guards(struct __sk_buff *skb);

/* The pin keeps it: without one the kernel empties an array of programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, int(struct __sk_buff *));
} door_programs SEC(".maps") = {
    .values = {[0] = (void *)&ack_guards},
};

/* Leaves the packet to ack_guards; returns only where that is not there. */
static __always_inline int ack_hand(struct __sk_buff *skb, const struct front_context *front)
{
	__u32 zero = 0;
	struct arrival *to = bpf_map_lookup_elem(&handed, &zero);

	if (!to)
		return TCX_NEXT;
	context_hand(front, to);
	bpf_tail_call(skb, &door_programs, 0);
	count_error(FIEF_ERR_DOOR);
	return TCX_NEXT;
}

/* What ack_guards is handed. */
static __always_inline const struct arrival *ack_take(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&handed, &zero);
}
