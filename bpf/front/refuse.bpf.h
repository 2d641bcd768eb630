/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Refuse: how a client is turned away, before there is a socket (answer.bpf.h) and where there is one (reset.bpf.h). */
#pragma once

#include "answer.bpf.h"
#include "cookie.bpf.h"
#include "flow/key.bpf.h"
#include "refused.bpf.h"
#include "reset.bpf.h"
#include "tracked.bpf.h"

/* Without a listening socket the kernel keeps the handshake, whose end may be on its way up already. */
static __always_inline int turn_away(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *found,
				     struct stream *stream)
{
	const struct packet *p = &front->packet;

	return found ? answer(skb, p, stream) : answer_and_reset(skb, p, stream, p->seq);
}

/*
 * Refuses what would go to a socket: the client's answer goes out as a copy, the packet itself becomes the reset of its socket. An answer of
 * ours has its place only where everything that the server has said is acknowledged, by this packet at the latest, and it owes none; else
 * both sides are reset.
 */
static __noinline int refuse_at(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				struct tcp_sock *tcp)
{
	struct packet *p = &front->packet;

	if (stream->ruling.rule.refusal != FIEF_REFUSE_DROP && (is_unacknowledged(tcp, p) || stream->unanswered))
		stream->ruling.rule.refusal = FIEF_REFUSE_RESET;
	p->ack = tcp->snd_nxt;
	stream->with.echo = cookie_clock_ms(front->now) + tcp->tsoffset;
	return answer_and_reset(skb, p, stream, tcp->rcv_nxt);
}

/* The same of a request that a rule refuses. */
static __noinline int later_refuse(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				   struct tcp_sock *tcp)
{
	int verdict = refuse_at(skb, front, stream, tcp);

	half_refuse(&front->packet, stream);
	return verdict;
}
