/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Deliver: a request that comes out of the queue goes to the server, or is answered.
 *
 * Problem: while it waited, its connection may have gone, and its ports may have another one, or the guard may be another, or its client
 * may have been banned.
 * How: the socket is looked up anew. A first request makes its connection, as one that did not wait does; a later one reaches its
 * socket only if that still waits for it. What cannot reach the server goes back into its line, and the place with it; for a moment
 * those of its class that have their sockets go instead. A banned client's is forgotten. What went to the server is kept until TCP has it
 * (carried.bpf.h).
 * Limits: a request that is refused is answered once, and one that finds no server is reset once. A client that does not get that hears
 * nothing until it says more: its bytes were acknowledged. A stock server that ends with unread bytes resets once, too.
 */
#pragma once

#include "absent.bpf.h"
#include "banned.bpf.h"
#include "carrier.bpf.h"
#include "freed.bpf.h"
#include "made.bpf.h"
#include "pace.bpf.h"
#include "turned.bpf.h"

static __always_inline enum fief_reason refusal_reason(__u32 why)
{
	return (why & ~QUEUE_OVER) == QUEUE_DISPLACED ? FIEF_REFUSED_QUEUE_DISPLACED : FIEF_REFUSED_QUEUE_WAIT;
}

/* The request, which the packet bears, is refused. */
static __always_inline int carrier_refuse(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					  struct tcp_sock *tcp, bool later, __u32 why)
{
	if (front->guard)
		verdict_count(front, stream->admitted.container, FIEF_NO_ID, refusal_reason(why), false);
	queue_refusal(stream, front, is_foreign(skb, &front->packet, &stream->admitted), why & QUEUE_OVER);
	if (later)
		return tcp ? refuse_at(skb, front, stream, tcp) : TCX_DROP;
	half_refuse_first(&front->packet, stream);
	return answer(skb, &front->packet, stream);
}

/* Whether nobody else's first bytes of this connection may pass now, as long as these need to reach TCP. */
static __always_inline bool carrier_claim(struct front_context *front, __u64 hash)
{
	struct admitted_pair *pair = admitted_pair(hash);

	return !pair || claim_take(pair, hash, front->packet.seq, front->now, true);
}

/* Without a guard any more: the connection that its cookie promised is made all the same. */
static __always_inline int carrier_admit(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					 struct tcp_sock *listening, __u64 hash)
{
	stream->admitted.time_ns = front->now;
	if (front->guard)
		return admit_of(skb, front, listening, stream, hash);
	return assign_to(skb, listening, front, &stream->with) == ASSIGNED ? TCX_NEXT : TCX_DROP;
}

/* A request of the class was released, which waited so long. */
static __noinline int released_note(struct fief_queue_class *of, __u64 ns)
{
	__u64 units = ns >> FIEF_WAIT_SHIFT;
	__u32 step = units, shift;

	if (units >= 4) {
		for (shift = 0; units >> shift >= 8 && shift < FIEF_WAIT_STEPS / 4 && can_loop; shift++)
			;
		step = 4 * shift + (__u32)(units >> shift);
	}
	if (step >= FIEF_WAIT_STEPS)
		step = FIEF_WAIT_STEPS - 1;
	__sync_fetch_and_add(&of->released, 1);
	__sync_fetch_and_add(&of->waited_ns, ns);
	__sync_fetch_and_add(&of->waits[step], 1);
	return 0;
}

/* Whether the carrier of another one that is refused, or reset, may follow at once (pace.bpf.h). */
static __always_inline bool may_follow(struct fief_queue *q, __u64 now)
{
	return !q->clock || is_timeless(q, now) || pace_allows(q, now);
}

/*
 * Only one that has taken something out of the queue sends another, so that a queue which cannot move does not turn in circles. `served`:
 * the server got that, as it has room for.
 */
static __noinline int queue_go_on(struct __sk_buff *skb, __u32 number, __u64 now, bool served)
{
	struct fief_queue *q = queue_get(number);

	if (q && queue_wants(q, now) && (served || may_follow(q, now)))
		queue_kick(skb, q, number);
	return 0;
}

/* TCP lacks bytes before a request that goes, or cannot send its answer: its place is one of those whose client owes bytes. */
static __noinline int place_shorten(struct fief_queue *q, struct queue_turn *turn, __u64 now)
{
	turn->ends = place_prolong(q, turn->class, turn->ends, place_ends(q, now, true));
	return 0;
}

/*
 * It goes back into its line, unless that is no more. `full`: the server takes no connection now, so that one which has its socket may go
 * instead.
 */
static __noinline int carrier_back(struct __sk_buff *skb, struct queue_handed *from, __u64 now, bool full)
{
	struct queue_links *links = queue_links();
	struct fief_queue *q = queue_get(from->turn.queue);
	enum queue_back back;

	if (!links)
		return 0;
	back = q ? queue_put_back(q, links, from->link, full ? LINK_FULL : 0) : BACK_ENDED;
	if (!q || back == BACK_ENDED)
		return waiting_forget(links, from->link);
	/* while it was out of its line the clock may have found nobody, and ended: another carrier starts it, with or without a place */
	if (has_clock(q, &from->packet) && is_timeless(q, bpf_ktime_get_ns()))
		queue_kick(skb, q, from->turn.queue);
	else if ((full && back == BACK_OTHER) || *(volatile __u32 *)&q->refused)
		queue_go_on(skb, from->turn.queue, now, false);
	return 0;
}

/* Why it goes. Read anew: to the verifier each use is for itself. */
static __always_inline __u32 goes_why(const struct queue_handed *from)
{
	return *(const volatile __u32 *)&from->why;
}

/* Hands the request to the server. `tcp`: a socket that listens, or its own. */
static __always_inline int carrier_serve(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					 struct tcp_sock *tcp, struct queue_handed *from, bool later)
{
	struct queue_links *links = queue_links();
	struct fief_queue *q = queue_get(from->turn.queue);
	int verdict = TCX_NEXT;
	bool claimed = true;
	__u32 answer;
	__u64 hash;

	if (!q || !links) {
		if (links)
			waiting_forget(links, from->link);
		owed_mark(skb);
		return TCX_NEXT;
	}
	if (goes_why(from) != QUEUE_AGAIN) {
		if (later && tcp && is_held_up(&front->packet, stream->admitted.tracked, tcp))
			place_shorten(q, &from->turn, front->now);
		answer = answer_begin_at(&front->packet, later ? tcp : NULL);
		served_begin(q, &front->packet, &from->turn, answer);
	}
	front->carried = true;
	if (!later && tcp) {
		hash = packet_flow(&front->packet);
		claimed = carrier_claim(front, hash);
		verdict = claimed ? carrier_admit(skb, front, stream, tcp, hash) : TCX_DROP;
	} else if (tcp) {
		served_check(&front->packet, tcp);
	}
	if (goes_why(from) == QUEUE_AGAIN) {
		__sync_fetch_and_add(&q->carried_again, 1);
	} else if (verdict == TCX_NEXT) {
		released_note(queue_class(q, from->turn.class), front->now - from->turn.since_ns);
		if (front->guard)
			verdict_count(front, stream->admitted.container, FIEF_NO_ID, FIEF_QUEUE_RELEASED, false);
	} else {
		served_undo(&front->packet);
		carrier_back(skb, from, front->now, claimed);
		return TCX_DROP;
	}
	if (tcp && front->guard && has_clock(q, &front->packet)) {
		carried_begin(from->turn.queue, from->link, connection_begin(&front->packet, later ? tcp : NULL));
		if (is_timeless(q, bpf_ktime_get_ns()))
			queue_kick(skb, q, from->turn.queue); /* the clock has found nobody meanwhile */
	} else {
		waiting_forget(links, from->link);
	}
	owed_mark(skb);
	return verdict;
}

/*
 * Whether its server has closed the socket. TCP would end that upon the bytes, by a reset that may be lost, and with it the FIN that it
 * sends until the client has it.
 */
static __always_inline bool is_closed(struct tcp_sock *tcp, __u32 state)
{
	return tcp && state != BPF_TCP_ESTABLISHED && tcp->inet_conn.icsk_inet.sk.sk_shutdown & RCV_SHUTDOWN;
}

/*
 * Nobody listens: the kernel resets it, and nobody sends it again. Whether the request stays in its line, where it is refused once it has
 * waited for too long: while the server is started anew, as the policy allows it (absent.bpf.h), as its place would let the next one go the
 * same way; and beyond so many in a ms, as a link may lose resets of thousands at once.
 */
static __noinline bool carrier_waits_on(struct __sk_buff *skb, const struct front_context *front,
					struct queue_handed *from)
{
	struct fief_queue *q = queue_get(from->turn.queue);

	if (!q)
		return false;
	if ((q->open || !is_absent(front)) && may_follow(q, front->now))
		return false;
	place_give(q, from->turn.class, from->turn.ends);
	carrier_back(skb, from, front->now, true);
	return true;
}

/*
 * It waited for a connection that is gone, and its ports have another one, to which it must not come: that would read it as
 * what it expects. The place that it took is free, and the next one goes. Its client sends nothing again, and is reset. `silent`:
 * it is not, since TCP tells it that the server has closed, or since it is banned, or since this one was carried before.
 */
static __noinline int carrier_drop(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				   struct queue_handed *from, bool silent)
{
	struct queue_links *links = queue_links();
	struct fief_queue *q = queue_get(from->turn.queue);

	if (!links)
		return TCX_DROP;
	if (!q) {
		waiting_forget(links, from->link);
		return TCX_DROP;
	}
	if (from->why == QUEUE_GOES)
		place_give(q, from->turn.class, from->turn.ends);
	if (!was_carried(from->why))
		__sync_fetch_and_add(&queue_class(q, queue_link(links, from->link)->class)->gone, 1);
	waiting_forget(links, from->link);
	queue_go_on(skb, from->turn.queue, front->now, false);
	stream->ruling.rule.refusal = silent ? FIEF_REFUSE_DROP : FIEF_REFUSE_RESET;
	return answer(skb, &front->packet, stream);
}

/* Whether the socket is another connection's than the one that the request was carried to before. */
static __noinline bool is_another(const struct queue_handed *from, struct tcp_sock *tcp)
{
	struct queue_waiting *waiting = bpf_map_lookup_elem(&queue_waits, &from->link);

	return was_carried(goes_why(from)) && tcp && waiting && !is_carried_to(waiting, tcp);
}

/* Whether a request waits of the socket that has this label. */
static __always_inline bool is_waited_for(const struct fief_label *label)
{
	return label && label->flags & FIEF_LABEL_WAITS;
}

static __always_inline int carrier_deliver(struct __sk_buff *skb)
{
	struct queue_handed *from = queue_handed_get();
	struct front_context front;
	struct stream *stream = stream_get();
	struct queue_links *links = queue_links();
	struct fief_label *label = NULL;
	struct tcp_sock *tcp = NULL;
	struct bpf_sock *sk;
	__u32 state = 0;
	bool later, found, closed;
	int verdict;

	if (!from || !stream || !links)
		return TCX_DROP;
	context_begin(&front, queue_arrival(from));
	later = from->what == QUEUE_LATER;
	if (any_banned() && ban_rule(&front) == TCX_DROP) {
		/* the server's socket would lack for ever what was acknowledged */
		verdict = later ? banned_ends(skb, &front.packet, false) : TCX_DROP;
		carrier_drop(skb, &front, stream, from, true);
		return verdict;
	}
	context_clear(&front);
	found = segment_guard_find(&front);
	front.now = bpf_ktime_get_ns();
	if (!found)
		front.guard = NULL;
	sk = socket_find(skb, &front.packet, found ? &front.listener : NULL);
	if (sk)
		state = sk->state;
	barrier_var(state);
	if (sk && (later ? has_stream(state) : state == BPF_TCP_LISTEN))
		tcp = bpf_skc_to_tcp_sock(sk);
	if (sk && later && tcp)
		label = bpf_sk_storage_get(&labels, sk, 0, 0);
	closed = later && (is_closed(tcp, state) || is_another(from, tcp));
	if (sk &&
	    (later ? closed || !(was_carried(goes_why(from)) || is_waited_for(label)) : state != BPF_TCP_LISTEN)) {
		bpf_sk_release(sk);
		verdict = carrier_drop(skb, &front, stream, from, closed || was_carried(goes_why(from)));
		return door_leave(skb, &front, verdict);
	}
	if (!sk && !later && found && from->why == QUEUE_GOES && carrier_waits_on(skb, &front, from))
		return TCX_DROP;
	if (label && !was_carried(goes_why(from))) /* else the next one may wait */
		__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_WAITS);
	if (tcp)
		made_mark(skb, state);
	if (tcp && !later && found)
		present_note(&front);
	if (from->why != QUEUE_GOES && from->why != QUEUE_AGAIN) {
		if (from->why == QUEUE_LOST)
			served_undo(&front.packet);
		queue_go_on(skb, from->turn.queue, front.now, false);
		stream->unanswered = stream->admitted.tracked & FIEF_LABEL_PIPELINED;
		verdict = carrier_refuse(skb, &front, stream, tcp, later, from->why);
		waiting_forget(links, from->link);
		verdict = door_leave(skb, &front, verdict);
	} else {
		verdict = carrier_serve(skb, &front, stream, tcp, from, later);
		if (verdict == TCX_NEXT && !later && !front.connected)
			passed_note(&front.packet);
		/* of what found no socket the kernel makes a reset, a first one's within the pace (carrier_waits_on) */
		if (verdict == TCX_NEXT)
			queue_go_on(skb, from->turn.queue, front.now, tcp || !later);
	}
	if (sk)
		bpf_sk_release(sk);
	return verdict;
}
