/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Leave: what a packet does once it has its verdict.
 *
 * Problem: an answer may have no way to its client, and a program that a verdict leaves the packet to may not be there.
 * How: such a verdict becomes one that the kernel knows. A packet that passes and belongs to no connection is noted (passed.bpf.h).
 */
#pragma once

#include "context.bpf.h"
#include "listening.bpf.h"
#include "passed.bpf.h"
#include "plain.bpf.h"
#include "queue.bpf.h"
#include "segment.bpf.h"
#include "verdict.bpf.h"

/* An answer that has no way: the kernel may know one for its own SYN-ACK, and else the client cannot be told anything. */
static __noinline int answer_unrouted(struct __sk_buff *skb, struct front_context *front, int verdict)
{
	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_ANSWER_UNROUTED, false);
	if (verdict == SEGMENT_UNASKED)
		return TCX_DROP; /* the kernel would ask for its neighbour */
	return (front->packet.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN ? syn_pass(skb, front) : TCX_DROP;
}

/* Carries out the verdict upon the packet. */
static __always_inline int door_leave(struct __sk_buff *skb, struct front_context *front, int verdict)
{
	if (verdict == SEGMENT_UNROUTED || verdict == SEGMENT_UNASKED)
		verdict = front->guard ? answer_unrouted(skb, front, verdict) : TCX_DROP;
	if (verdict >= QUEUE_FIRST && verdict <= QUEUE_REPEATS)
		/* its program is not there: what has a socket, or gets one from the kernel, passes */
		verdict =
		    verdict == QUEUE_LATER || verdict == QUEUE_UNHELD || verdict == QUEUE_WHOLE ? TCX_NEXT : TCX_DROP;
	if (verdict == TCX_NEXT && !front->connected)
		passed_note(&front->packet);
	return verdict;
}
