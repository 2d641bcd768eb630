/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Waiting: what is kept of a request that waits, and what becomes of one that arrives.
 *
 *   room, and nobody waits    it goes on at once
 *   no room                   its bytes are kept, and acknowledged in the server's name
 *   no room to wait either    it is refused, or the newest of a lower class is (room.bpf.h)
 *   in vain                   it is refused: more wait than the server takes up in time (stands.bpf.h)
 *   once more                 it is acknowledged again; a FIN behind it goes with it
 *   the client resets it      it waits no longer
 *
 * Problem: with its rules the door is nearly what the verifier follows in one program.
 * How: this is a program of its own. The door's calls it once a request is ruled, and leaves the packet and the stream to it.
 * If nothing else happens the time moves a queue on (ticks.bpf.h). A queue without a clock leaves the last byte of two requests
 * unacknowledged, so that their clients send it again.
 * Limits: bytes behind the kept ones come again when the server has the request. A request beside others that passed before it
 * with the same packet waits for all of them.
 */
#pragma once

#include "admit.bpf.h"
#include "answer.bpf.h"
#include "behind.bpf.h"
#include "charged.bpf.h"
#include "cut.bpf.h"
#include "labelled.bpf.h"
#include "lined.bpf.h"
#include "plain.bpf.h"
#include "refuse.bpf.h"
#include "room.bpf.h"
#include "ticks.bpf.h"
#include "turned.bpf.h"
#include "turns.bpf.h"
#include "windows.bpf.h"

#define QUEUE_CLOCKS 2

enum queue_way { WAY_ENTERS, WAY_WAITS, WAY_REFUSED, WAY_TOO_MANY, WAY_LATE };

/*
 * `bytes`: 0 where it cannot wait; then it enters, and takes its place. `fits`: what can be kept of it may be served without the rest;
 * if not, it is refused where it would wait. Global: the verifier would follow it from each state that a packet can be in by then.
 */
__noinline int queue_decide(struct queue_turn *to __arg_nonnull, __u32 bytes, __u32 fits)
{
	struct queue_links *links = queue_links();
	struct fief_queue *q = queue_get(to->queue);
	__u64 now = to->since_ns; /* it has just come */
	__u32 way = WAY_ENTERS, is_long, enough;
	struct fief_queue_class *of;
	bool free;
	__u64 room;

	if (!q || !links)
		return WAY_ENTERS; /* the queue has gone meanwhile: the request goes on as before */
	of = queue_class(q, to->class);
	bpf_spin_lock(&q->lock);
	places_run_out(q, now);
	queue_expire(q, links, now);
	is_long = class_is_long(of);
	enough = class_has_enough(of, now) & ~is_long;
	room = class_has_room(q, of, bytes) & ~(__u64)(is_long | enough);
	barrier_var(room);
	free = queue_is_free(q, now) && !class_is_over(q, of, now) && !class_is_full(q, of);
	if (q->monitor || !bytes || free) {
		if (q->monitor && (q->bits || q->busy >= q->places || class_is_over(q, of, now)))
			q->would_wait++;
		q->measured.slack |= queue_room(q);
		if (free && !q->busy)
			levels_settle(q);
		if (free)
			level_serves(q, of); /* what nobody else wanted is not owed to who comes later */
		to->ends = place_take(q, of, to->ends);
		of->entered++;
	} else if (fits && (room || (!enough && queue_displace(q, links, to, is_long, now)))) {
		class_joined(q, of);
		of->held++;
		__sync_fetch_and_add(&q->kept, bytes);
		way = WAY_WAITS;
	} else {
		of->refused_wait += enough;
		of->refused_full += 1 - enough;
		way = WAY_REFUSED + is_long + 2 * enough; /* WAY_TOO_MANY, WAY_LATE */
	}
	bpf_spin_unlock(&q->lock);
	return way;
}

/* Nothing could be kept of it: all queues together have taken what there is. */
static __noinline int queue_unwait(struct fief_queue *q, __u32 class, __u32 bytes)
{
	bpf_spin_lock(&q->lock);
	class_left(q, queue_class(q, class));
	queue_class(q, class)->held--;
	queue_class(q, class)->refused_full++;
	bpf_spin_unlock(&q->lock);
	__sync_fetch_and_add(&q->kept, -(__u64)bytes);
	return 0;
}

/* Puts it into the line. `asks`: its client may be the clock. Whether it is to send its last byte again. */
static __noinline bool queue_line_up(struct fief_queue *q, struct queue_links *links, __u32 class, __u32 at, bool asks)
{
	struct queue_link *link = queue_link(links, at);
	bool clock = false;

	bpf_spin_lock(&q->lock);
	if (asks && q->clocks < QUEUE_CLOCKS) {
		__sync_fetch_and_add(&q->clocks, 1);
		link->flags |= LINK_CLOCK;
		clock = true;
	}
	queue_push(q, links, class, at);
	bpf_spin_unlock(&q->lock);
	return clock;
}

/* Where the answer to the request begins. `tcp`: its socket, if there is one. */
static __always_inline __u32 answer_begin_at(const struct packet *p, struct tcp_sock *tcp)
{
	__u32 answer = p->ack;

	barrier_var(answer); /* one load for both would be of two kinds of memory */
	if (tcp)
		answer = tcp->write_seq;
	barrier_var(answer);
	return answer;
}

/* It does not wait: it makes its connection, or goes to its socket. */
static __always_inline int queue_enter(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				       struct fief_queue *q, struct tcp_sock *tcp, const struct queue_turn *place)
{
	int verdict = TCX_NEXT;
	__u32 answer;

	answer = answer_begin_at(&front->packet, front->ruled ? tcp : NULL);
	served_begin(q, &front->packet, place, answer);
	if (!front->ruled)
		verdict = admit(skb, front, tcp, stream);
	else if (tcp)
		served_check(&front->packet, tcp);
	if (verdict == TCX_NEXT) {
		placed_mark(skb, q);
		return TCX_NEXT;
	}
	served_undo(&front->packet);
	__sync_fetch_and_add(&queue_class(q, place->class)->entered, -1);
	return verdict;
}

/* `at`: what is kept of it. */
static __always_inline int queue_wait(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				      struct fief_queue *q, struct queue_links *links, struct tcp_sock *tcp,
				      struct fief_label *label, __u32 class, __u32 at)
{
	struct packet *p = &front->packet;
	__u32 end = waiting_end(packet_end(p), p->payload_length), window;

	if (label)
		__sync_fetch_and_or(&label->flags, FIEF_LABEL_WAITS); /* once in line, it may be next on another CPU */
	if (queue_line_up(q, links, class, at, !(p->flags & TCP_FIN) && !has_clock(q, p)))
		end--;
	queue_news_tell();
	if (queue_wants(q, front->now) || is_timeless(q, front->now))
		queue_kick(skb, q, front->guard->queue);
	if (label && tcp && is_behind(p->seq, tcp->rcv_nxt))
		return TCX_DROP; /* what is before has not reached TCP yet, and is acknowledged first */
	window = waiting_window(front, tcp, label, &stream->with, p->seq, end);
	return acknowledge(skb, p, &stream->with, end, window);
}

/* Whether the packet's client and the server may agree on several paths: only its own packet can make that connection. */
static __noinline bool bears_multipath(struct __sk_buff *skb, const struct packet *p)
{
	__u32 length = p->payload - p->transport - sizeof(struct tcphdr);
	struct option_bytes bytes = {};

	if (!length || length > OPTIONS_MOST)
		return false;
	if (bpf_skb_load_bytes(skb, p->transport + sizeof(struct tcphdr), bytes.at, length))
		return true;
	return options_pad(&bytes, length) & PADDED_MULTIPATH;
}

/* Whether the packet can be of the connection of what waits. */
static __always_inline bool is_of_waiting(const struct packet *p, const struct queue_waiting *waiting)
{
	return p->seq - waiting->packet.seq < FORGOTTEN_BYTES && p->ack - waiting->packet.ack < FORGOTTEN_BYTES;
}

/* Whether another CPU has what waited in hand: it is on its way to TCP. */
static __always_inline bool is_in_hand(const struct queue_held *held, const struct queue_waiting *waiting)
{
	struct queue_links *links = queue_links();
	struct queue_link *link;

	if (!links || !queue_get(waiting->queue))
		return false;
	link = queue_link(links, held->link);
	return link->serial == held->serial && link->linked == QUEUE_NOWHERE;
}

/*
 * What is known of an earlier connection, or of a request that is answered, is forgotten, whatever was seen of that. Not where
 * an earlier request of this connection waits, as two CPUs may have ruled one each: it was acknowledged. False: so it is. Fills whose
 * the request was that the server has, or had a moment ago. `acknowledged`: of a later one, as far as its client has what the server said.
 */
static __noinline bool earlier_forget(const struct packet *p, bool later, __u32 acknowledged, struct queue_turn *turn)
{
	struct queue_waiting *waiting;
	struct fief_served *served;
	struct fief_flow_key key;
	struct queue_held held;
	struct fief_queue *q;

	flow_key(p, &key);
	waiting = waiting_find(&key, &held);
	if (waiting && later && is_of_waiting(p, waiting))
		return false;
	/* what contradicts the one in hand would pass too */
	if (waiting && !waiting_cancel(&held, waiting) && !later && is_in_hand(&held, waiting))
		return false;
	if (!later)
		lasting_end(&key);
	served = bpf_map_lookup_elem(&queue_serves, &key);
	q = served ? queue_get(served->queue) : NULL;
	if (q)
		turn->before = queue_class(q, served->class)->container.id;
	if (served && (!later || is_behind(acknowledged, served->answer) || has_run_out(served)))
		served_end_of(q, &key, served, bpf_ktime_get_ns());
	return true;
}

/* The begin of a connection has no place to wait. It comes again, and its rate has been charged. */
static __noinline int begin_comes_again(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	admitted_note(skb, front, &stream->admitted, stream->flow);
	admitted_fail(stream->flow, stream->admitted.begin);
	return TCX_DROP;
}

/* No room, and nobody gives way; or it would wait for too long. */
static __always_inline int queue_turn_away(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					   struct tcp_sock *tcp, bool over, bool late)
{
	enum fief_reason reason = late ? FIEF_REFUSED_QUEUE_WAIT : FIEF_REFUSED_QUEUE_FULL;

	verdict_count(front, stream->admitted.container, FIEF_NO_ID, reason, false);
	queue_refusal(stream, front, is_foreign(skb, &front->packet, &stream->admitted), over);
	if (front->ruled && tcp)
		return refuse_at(skb, front, stream, tcp);
	half_refuse_first(&front->packet, stream);
	return answer(skb, &front->packet, stream);
}

/*
 * Whether TCP would take its bytes, by their checksum: what is kept goes to it with a good one. Leaves the stream with
 * them, if it `loads`. A function of its own to the verifier.
 */
__noinline int payload_valid(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			     struct stream *stream __arg_nonnull, bool loads)
{
	if (!p->payload_length || (!loads && (checksum_known(skb) || p->payload_length > STREAM_PIECE)))
		return 1;
	stream_begin(stream, p->seq);
	return stream_append(skb, p, stream, 0) > 0 && checksum_valid(skb, p, stream, 0);
}

/* Whether its checksum is known to be good, or was looked at: that of a packet which the stream does not take as a whole never is. */
static __always_inline bool is_verified(struct __sk_buff *skb, const struct packet *p)
{
	return p->payload_length <= STREAM_PIECE || checksum_known(skb);
}

/*
 * Whether what is behind the bytes that can wait, in the first packet of a connection, is nothing that was ruled: it comes again, and may
 * be something else then.
 */
static __always_inline bool may_be_shortened(const struct packet *p, const struct stream *stream)
{
	const __u32 more = BODY_STATES | FIEF_LABEL_TAIL | FIEF_LABEL_HALF;
	const struct fief_admitted *entry = &stream->admitted;
	__u32 head = stream->ruling.head;

	if (!(entry->tracked & FIEF_LABEL_TRACKED))
		return true;
	return !(entry->tracked & more) && head <= FIEF_QUEUE_MOST &&
	       entry->next - p->seq == head + (__u32)stream->ruling.body;
}

/* Only so much of it waits: the client keeps the rest, and sends it when the server has this. */
static __always_inline void packet_shorten(struct fief_queue *q, struct packet *p)
{
	p->payload_length = FIEF_QUEUE_MOST;
	p->flags &= ~TCP_FIN;
	__sync_fetch_and_add(&q->too_long, 1);
}

/* Whether the class has all places that a latency of a better one leaves it, those given back that have run out. */
__noinline int class_has_all(__u32 queue, __u32 class, __u64 now)
{
	struct fief_queue *q = queue_get(queue);
	__u64 full;

	if (!q || q->monitor)
		return 0;
	bpf_spin_lock(&q->lock);
	places_run_out(q, now);
	full = class_is_full(q, queue_class(q, class));
	bpf_spin_unlock(&q->lock);
	return full != 0;
}

/* A ruled request has come. */
static __always_inline int queue_arrives(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					 struct tcp_sock *tcp, struct fief_label *label, __u32 what)
{
	struct fief_queue *q = queue_of_packet(skb, front->guard->queue);
	struct queue_links *links = queue_links();
	struct packet *p = &front->packet;
	bool later = what == QUEUE_LATER, owes, over, multipath, fits;
	struct queue_turn place = {.before = stream->admitted.container.id};
	__u32 class, bytes, at;
	enum queue_way way;
	int verdict;

	if (!earlier_forget(p, later, stream->acknowledged, &place))
		return TCX_DROP;
	if (later && q && q->until == FIEF_UNTIL_CLOSE && flow_lasts(p))
		return TCX_NEXT;
	if (!q || !links || !front->queued)
		return later ? TCX_NEXT : admit(skb, front, what == QUEUE_FIRST ? tcp : NULL, stream);
	class = queue_class_of(q, ref_word(stream->admitted.container));
	class_settle(q, class, front->now);
	over = !q->monitor && class_is_over(q, queue_class(q, class), front->now);
	multipath = what == QUEUE_FIRST && tcp && is_multipath(tcp) && bears_multipath(skb, p);
	if ((multipath || what == QUEUE_UNHELD) && (over || class_has_all(front->guard->queue, class, front->now)))
		return begin_comes_again(skb, front, stream);
	if (multipath) {
		if (!q->monitor && !queue_room(q))
			return begin_comes_again(skb, front, stream);
		what = QUEUE_UNHELD;
	}
	bytes = what == QUEUE_UNHELD || !p->payload_length ? 0 : queue_cost(p->payload_length);
	front->ruled = later;
	if (later && !q->monitor && !payload_valid(skb, p, stream, false))
		return TCX_DROP;
	owes = is_owing(p, &stream->admitted, later ? tcp : NULL, &stream->with) ||
	       (later && tcp && may_stay_unanswered(skb, p, tcp, &stream->admitted));
	place.since_ns = front->now;
	/* what TCP cannot hand on yet keeps no place either, nor whose answer it cannot send: once it has waited, that is asked anew */
	place.ends = place_ends(q, front->now, owes || (later && tcp && is_held_up(p, stream->admitted.tracked, tcp)));
	place.queue = front->guard->queue;
	place.class = class;
	place.source = source_list(p, q->fair);
	/* here, and not by what was seen of the queue before: whether it has to wait is known under the lock */
	fits = p->payload_length <= FIEF_QUEUE_MOST ||
	       (is_verified(skb, p) && (later ? !stream->read : may_be_shortened(p, stream)));
	way = queue_decide(&place, bytes, fits);
	if (way == WAY_WAITS) {
		if (p->payload_length > FIEF_QUEUE_MOST) {
			packet_shorten(q, p);
			owes = true;
			stream->admitted.tracked |= FIEF_LABEL_OWES;
			if (label)
				__sync_fetch_and_or(&label->flags, FIEF_LABEL_OWES);
		}
		at = waiting_keep(skb, front, stream, &place, (later ? KEEP_LATER : 0) | (owes ? KEEP_OWES : 0));
		if (at) {
			waits_charge(queue_class(q, class), stream->admitted.container);
			verdict_count(front, stream->admitted.container, FIEF_NO_ID, FIEF_QUEUE_WAITS, false);
			return queue_wait(skb, front, stream, q, links, tcp, label, class, at);
		}
		queue_unwait(q, class, bytes);
	}
	if (way == WAY_ENTERS)
		verdict = queue_enter(skb, front, stream, q, what == QUEUE_UNHELD ? NULL : tcp, &place);
	else
		verdict = queue_turn_away(skb, front, stream, tcp, over || way == WAY_TOO_MANY, way == WAY_LATE);
	if (queue_wants(q, front->now))
		queue_kick(skb, q, front->guard->queue);
	return verdict;
}
