/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reset: a request that was made to a socket of ours is refused: the client gets its answer, and the socket a reset.
 *
 * Problem: a server that serves one after the other would wait on it for ever.
 */
#pragma once

#include "answer.bpf.h"
#include "owed.bpf.h"

/* Makes the packet the reset of its socket, in the client's name; `expected` is the socket's next byte. */
static __noinline int socket_reset(struct __sk_buff *skb, const struct packet *p, __u32 expected)
{
	struct segment *s = segment_begin(expected, p->ack, 0, TCP_ACK | TCP_RST);

	if (!s || segment_put(skb, p, s, false))
		return -1;
	owed_mark(skb); /* nobody sends it again */
	return 0;
}

/*
 * Refuses a request that was made to a socket of ours: the client gets its answer, and the socket a reset. Else a server
 * that serves one after the other would wait on it for ever. One of them goes as a copy: the answer where it goes back as
 * it came. Where it takes a route, which no copy can be sent to, the reset comes in once more.
 */
__noinline int answer_and_reset(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
				struct stream *stream __arg_nonnull, __u32 expected)
{
	const struct asking *by = &stream->ruling.by;
	enum answer_leaves leaves;
	struct segment *s;

	if (stream->ruling.rule.refusal == FIEF_REFUSE_DROP)
		return TCX_DROP;
	s = answer_segment(p, stream);
	if (!s)
		return TCX_DROP;
	leaves = answer_route(skb, p, &s->way);
	if (leaves == LEAVES_BACK) {
		if (segment_put(skb, p, s, true))
			return TCX_DROP;
		bpf_clone_redirect(skb, skb->ifindex, 0);
	}
	if (socket_reset(skb, p, expected))
		return TCX_DROP;
	if (leaves == LEAVES_NOWHERE || leaves == LEAVES_UNASKED)
		ruling_count(p, by, by->container, FIEF_NO_ID, FIEF_ANSWER_UNROUTED, false, NULL);
	if (leaves != LEAVES_BY_ROUTE)
		return TCX_NEXT;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	s = answer_segment(p, stream);
	if (!s || segment_put(skb, p, s, true))
		return TCX_DROP;
	return route_take(skb, p, &s->way);
}
