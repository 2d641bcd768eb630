/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ends: connections that the kernel makes, counted for the rates of single sources, which they prove.
 *
 * Problem: a SYN can be forged in any source's name, and must not spend that source's rates. But where the kernel keeps the
 * handshake, or answers with its own cookie, no cookie of ours comes back.
 * How: the end of the handshake is counted, because it bears the numbers of the request socket or the kernel's cookie. One
 * above the rate is dropped: the client takes its connection for made and sends its bytes again, or the kernel sends its answer
 * again. The bare end and the first bytes may both pass before TCP has seen either, so the last ends are remembered. A request
 * socket makes one connection. A cookie makes one each time that it comes back, however the one before ended: once more it is the
 * same end, as long as TCP needs to see it, and then another one.
 * Limits: an end whose entry was displaced meanwhile is counted twice, and so is each cookie that a client sends again to a
 * server without room for its connection. Of one batch two connections may be counted as one.
 */
#pragma once

#include "isolated.bpf.h"
#include "penalised.bpf.h"
#include "police.bpf.h"
#include "resent.bpf.h"

#define COUNTED_ENDS 4096

/* As verdicts (TCX_NEXT is -1): the kernel makes the connection of the segment, */
#define STREAM_UNHELD  -3 /* and its bytes are to be ruled */
#define HANDSHAKE_ENDS -4
/* or would make it with its bytes, which are ruled first. */
#define HANDSHAKE_BEGINS -7

/* Of the tag of numbers: it is there; and they are a request socket's. */
#define OF_COOKIE  1u
#define OF_REQUEST 2u

#define BATCH_NS   2000000ull /* packets of one batch pass here before the first of them has reached TCP */

struct counted_end {
	__u32 flow;    /* a tag of it */
	__u32 numbers; /* a tag of the handshake's; 0: the next end is of another connection */
	__u64 time_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTED_ENDS);
	__type(key, __u32);
	__type(value, struct counted_end);
} counted_ends SEC(".maps");

/* Where the last end of a handshake of the flow is noted. */
static __always_inline struct counted_end *end_place(const struct fief_secret *secret, const struct packet *p,
						     __u32 *flow)
{
	__u64 hash = numbers_hash(secret, p, 0, 0);
	__u32 at = hash >> 32 & (COUNTED_ENDS - 1);

	*flow = hash;
	return bpf_map_lookup_elem(&counted_ends, &at);
}

/* The client ends its connection, or is about to: its cookie makes another one then. */
static __noinline int end_forget(const struct packet *p)
{
	__u32 zero = 0, flow;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	struct counted_end *place = secret ? end_place(secret, p, &flow) : NULL;

	if (place && place->flow == flow && !(place->numbers & OF_REQUEST))
		place->numbers = 0;
	return 0;
}

/* The segment ends a handshake by its numbers: whether its source may have one connection more. */
static __noinline bool end_take(struct front_context *front)
{
	__u32 zero = 0, flow, numbers;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	struct packet *p = &front->packet;
	struct counted_end *place;

	if (!secret || (front->guard->flags & (FIEF_GUARD_POLICE | FIEF_GUARD_MONITOR)) != FIEF_GUARD_POLICE)
		return true;
	/* of any place in the window, the end of a request socket's handshake is one */
	numbers = numbers_hash(secret, p, front->connected ? 0 : p->seq, p->ack) | OF_COOKIE;
	numbers = front->connected ? numbers | OF_REQUEST : numbers & ~OF_REQUEST;
	place = end_place(secret, p, &flow);
	if (!place)
		return true;
	if (place->flow == flow && place->numbers == numbers &&
	    (front->connected || front->now - place->time_ns < BATCH_NS)) {
		if (!front->connected)
			place->numbers = 0;
		return true;
	}
	if (!connection_take(front, front->guard->proven_interval_ns ? source_find(front) : NULL))
		return false;
	place->time_ns = front->now;
	place->flow = flow;
	place->numbers = numbers;
	return true;
}

/* Whether its source was refused a request since the handshake began. A function of its own to the verifier. */
static __noinline bool end_penalised(struct front_context *front)
{
	if (!is_penalised(front, source_policed(front)))
		return false;
	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_SYN_PENALTY, false);
	return true;
}

/* The verdict, with the end of a handshake counted: of the connection whose first byte is `begin`, if nothing of it is ruled yet. */
static __noinline int end_rule(struct __sk_buff *skb, struct front_context *front, int verdict, __u32 begin)
{
	if (verdict != STREAM_UNHELD && verdict != HANDSHAKE_ENDS && verdict != HANDSHAKE_BEGINS)
		return verdict;
	if (front->guard->flags & FIEF_GUARD_POLICE)
		source_prove(front); /* it has seen the kernel's answer */
	if (end_penalised(front) || !end_take(front))
		return TCX_DROP;
	if (verdict == HANDSHAKE_BEGINS)
		return verdict;
	if (front->guard->flags & FIEF_GUARD_INTO)
		isolated_end(skb, front, begin); /* a verdict upon its bytes replaces this */
	return verdict == STREAM_UNHELD ? STREAM_ENDS : TCX_NEXT;
}
