/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Follows: what else comes of a flow whose request waits.
 *
 *   more of its body, or of its turn    is kept behind it, and acknowledged
 *   the same bytes again                are acknowledged again
 *   a body before it that TCP lacks      passes
 *   a FIN right behind                  goes with it
 *   what has to be ruled first          is dropped, and comes again
 *   the client resets it                it waits no longer
 *
 * Problem: what is dropped comes again by the client's own timeouts, 0.2 s and more after the request has gone to the server.
 * How: the next bytes in order, up to what is kept of one request, are put behind those that wait. Whoever does so has the link for
 * that time: nobody takes it out of its list (LINK_GROWS), and what finds it next leaves that to the kick that follows.
 * Limits: bytes behind a gap are not kept, nor those of the request that follows.
 */
#pragma once

#include "heads.bpf.h"
#include "taken.bpf.h"
#include "tracked.bpf.h"
#include "turns.bpf.h"
#include "waiting.bpf.h"

/* How many bytes the packet adds to what waits, without those that a rule has to see. */
static __always_inline __u32 joins(const struct queue_waiting *waiting, const struct packet *p)
{
	__u32 end = waiting->packet.seq + waiting->length, flags = waiting->admitted.tracked;
	__u32 count = p->seq + p->payload_length - end, left = waiting->admitted.next - end;

	if (p->seq != end || !p->payload_length || waiting->packet.flags & TCP_FIN ||
	    waiting->length >= FIEF_QUEUE_MOST)
		return 0;
	if (!(flags & FIEF_LABEL_TURNS) || flags & FIEF_LABEL_TRACKED) {
		if (!(flags & FIEF_LABEL_TRACKED) || flags & BODY_STATES || !is_behind(waiting->admitted.next, end))
			return 0;
		if (count > left)
			count = left;
	}
	if (count > FIEF_QUEUE_MOST - waiting->length)
		count = FIEF_QUEUE_MOST - waiting->length;
	return count;
}

/* False: it is about to go, or another CPU puts something behind it. */
static __noinline bool join_begin(struct fief_queue *q, struct queue_links *links, const struct queue_held *held)
{
	struct queue_link *link = queue_link(links, held->link);
	bool mine;

	bpf_spin_lock(&q->lock);
	mine = link_waits(link, held->serial);
	if (mine)
		link->flags |= LINK_GROWS;
	bpf_spin_unlock(&q->lock);
	return mine;
}

/* The client's side ends behind what waits. False: that is about to go, or is not known to its end. */
static __noinline bool end_join(struct fief_queue *q, struct queue_links *links, const struct queue_held *held,
				struct queue_waiting *waiting)
{
	struct queue_link *link = queue_link(links, held->link);
	bool waits;

	bpf_spin_lock(&q->lock);
	waits = link_waits(link, held->serial);
	if (waits)
		waiting->packet.flags |= TCP_FIN;
	bpf_spin_unlock(&q->lock);
	return waits;
}

/* `length`: its bytes from now on. */
static __noinline int join_end(struct fief_queue *q, struct queue_link *link, struct queue_waiting *waiting,
			       __u32 length, bool owes)
{
	bpf_spin_lock(&q->lock);
	waiting->length = length;
	link->flags &= ~LINK_GROWS;
	if (!owes)
		link->flags &= ~LINK_OWES;
	bpf_spin_unlock(&q->lock);
	return 0;
}

/* Keeps the pieces that are new in the stream. False: there is no room for one, and none is kept that was not there. */
static __noinline bool pieces_join(struct stream *stream, __u32 at, __u32 before, __u32 length)
{
	__u32 piece, done;
	bool kept = true;
	int i;

	bpf_for (i, 0, FIEF_QUEUE_PIECES) {
		done = (i & 15) * FIEF_QUEUE_PIECE;
		piece = at << 4 | i;
		if (done >= length)
			break;
		if (done + FIEF_QUEUE_PIECE > before &&
		    bpf_map_update_elem(&queue_pieces, &piece, stream->bytes + done, BPF_ANY))
			kept = false;
	}
	if (kept)
		return true;
	bpf_for (i, 0, FIEF_QUEUE_PIECES) {
		piece = at << 4 | i;
		if (i * FIEF_QUEUE_PIECE >= before)
			bpf_map_delete_elem(&queue_pieces, &piece);
	}
	return false;
}

/* Puts what the packet brings behind what waits, as far as there is room. Leaves neither the stream nor its options as they were. */
static __noinline int waiting_join(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				   struct tcp_sock *tcp)
{
	struct queue_links *links = queue_links();
	struct packet *p = &front->packet;
	struct queue_waiting *waiting;
	struct fief_flow_key key;
	struct queue_held held;
	struct fief_queue *q;
	__u32 before, count, cost, length, at;
	bool owes = true;

	flow_key(p, &key);
	waiting = waiting_find(&key, &held);
	if (!waiting)
		return 0;
	q = queue_get(waiting->queue);
	if (!links || !q || p->odd)
		return 0;
	at = held.link & (FIEF_QUEUE_SLOTS - 1);
	length = before = waiting->length;
	count = joins(waiting, p);
	if (!count)
		return 0;
	/* not as long as TCP lacks what is before it, nor what TCP would not take */
	if (waiting->later &&
	    (!tcp || is_behind(waiting->packet.seq, tcp->rcv_nxt) || !would_be_taken(skb, p, tcp, &stream->with)))
		return 0;
	if (!payload_valid(skb, p, stream, true))
		return 0;
	cost = queue_cost(before + count) - queue_cost(before);
	if (*(volatile __u64 *)&q->kept + cost > q->memory || !join_begin(q, links, &held))
		return 0;
	if (waiting->length == before && waiting_load(waiting, at, stream) && stream_append(skb, p, stream, 0) > 0 &&
	    pieces_join(stream, at, before, before + count)) {
		__sync_fetch_and_add(&q->kept, cost);
		length = before + count;
		owes = is_owing(p, &waiting->admitted, waiting->later ? tcp : NULL, &waiting->with) ||
		       (waiting->admitted.tracked & FIEF_LABEL_TURNS && length <= TURN_SHORT);
	}
	join_end(q, queue_link(links, at), waiting, length, owes);
	if (queue_wants(q, front->now))
		queue_kick(skb, q, waiting->queue);
	return 0;
}

/* Whether a segment without a socket is of a request that waits: by the number that it acknowledges, which is the cookie's. */
static __noinline bool queue_repeats(const struct packet *p)
{
	struct queue_waiting *waiting;
	struct fief_flow_key key;
	struct queue_held held;

	flow_key(p, &key);
	waiting = waiting_find(&key, &held);
	return waiting && !waiting->later && waiting->packet.ack == p->ack &&
	       p->seq - waiting->packet.seq + 1 < FORGOTTEN_BYTES;
}

/* Whether a part of a request stands before `end`, whose rest has not come. */
static __always_inline bool is_half(const struct queue_waiting *waiting, __u32 end)
{
	return waiting->admitted.tracked & FIEF_LABEL_TRACKED && is_behind(end, waiting->admitted.next);
}

/*
 * Whether TCP would take the packet's FIN, which stands right behind what waits, once it has that. Where there is no socket yet, who sees
 * the connection knows the number that its first answer begins with.
 */
static __noinline bool end_is_theirs(struct __sk_buff *skb, const struct packet *p, struct stream *stream,
				     struct tcp_sock *tcp, const struct queue_waiting *waiting)
{
	if (!waiting->later)
		return p->ack == waiting->packet.ack;
	return tcp && would_be_taken(skb, p, tcp, &stream->with);
}

/* A segment of a flow whose request waits. `label`: of its socket, if it has one. */
static __noinline int queue_repeated(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				     struct tcp_sock *tcp, struct fief_label *label)
{
	struct packet *p = &front->packet;
	struct queue_waiting *waiting;
	struct queue_links *links;
	struct fief_flow_key key;
	struct queue_held held;
	struct fief_queue *q;
	__u32 end, window;

	flow_key(p, &key);
	waiting = waiting_find(&key, &held);
	if (!waiting) {
		if (label)
			__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_WAITS);
		return TCX_DROP; /* it goes on at this moment, and what follows comes again */
	}
	q = queue_get(waiting->queue);
	if (q && queue_wants(q, front->now))
		queue_kick(skb, q, waiting->queue);
	if (p->odd || options_read(skb, p, &stream->with))
		return TCX_DROP;
	end = waiting->packet.seq + waiting->length;
	/* an end within what the rules have not seen to its end is theirs to rule, and comes again */
	links = queue_links();
	if (p->flags & TCP_FIN && p->seq + p->payload_length == end && !is_half(waiting, end) &&
	    !(q && links && end_is_theirs(skb, p, stream, tcp, waiting) && end_join(q, links, &held, waiting)))
		return TCX_DROP;
	if (waiting->packet.flags & TCP_FIN)
		end++;
	else if (links && queue_link(links, held.link)->flags & LINK_CLOCK)
		end--; /* once more, later */
	if (is_bare(p) && p->seq == end)
		return TCX_DROP;
	if (label && tcp && is_behind(waiting->packet.seq, tcp->rcv_nxt))
		return TCX_DROP;
	end = waiting_end(end, waiting->length);
	window = waiting_window(front, tcp, waiting->later, &waiting->with, waiting->packet.seq, end);
	return acknowledge(skb, p, &stream->with, end, window);
}

/*
 * A reset of a flow, with the very next number: what waits of it is forgotten, and its place may become free. `connected`: it has a socket,
 * whose end is told.
 */
static __noinline int queue_reset(struct __sk_buff *skb, const struct packet *p, bool connected)
{
	struct queue_waiting *waiting;
	struct fief_served *served;
	struct fief_flow_key key;
	struct queue_held held;
	struct fief_queue *q;
	__u32 from;

	flow_key(p, &key);
	waiting = waiting_find(&key, &held);
	if (waiting) {
		from = p->seq - (waiting->packet.seq + waiting->length);
		/* or with the number that TCP expects, which has none of it yet */
		if (from + 1 <= 2 || (waiting->later && p->seq == waiting->packet.seq))
			waiting_cancel(&held, waiting);
	}
	served = bpf_map_lookup_elem(&queue_serves, &key);
	if (!served)
		return 0;
	q = queue_get(served->queue);
	if (q && !connected && p->seq - served->upto < FORGOTTEN_BYTES) {
		/* nobody waits for an answer, and before it has its socket it is not to be carried again (carried.bpf.h) */
		handed_forget(queue_class(q, served->class), served->since_ns);
		served->since_ns = 0;
	}
	if (q && q->bits)
		queue_kick(skb, q, served->queue); /* comes behind this packet, which ends the socket */
	return 0;
}

/* ---- the program ---- */

/*
 * Whether heads that were ruled end behind `at`. A packet that brings their bytes again is compared with them range by range
 * (repeated.bpf.h), and a sender may cut its packets finer than the ranges.
 */
static __noinline bool heads_behind(struct head_ranges *ranges, __u32 at)
{
	return ranges->count != ranges->first && is_behind(head_range(ranges, ranges->count - 1)->end, at);
}

/*
 * What the verdict upon a later request left on its socket. Of bytes that were ruled behind the packet's, as TCP did not take them,
 * nothing joins it: they might be others now. False: another CPU rules the connection.
 */
static __noinline bool label_read(struct bpf_sock *sk, struct fief_label *label, const struct packet *p,
				  struct stream *stream)
{
	struct fief_admitted *entry = &stream->admitted;
	__u32 end = p->seq + p->payload_length;
	struct head_ranges *ranges;

	if (!label_take(label))
		return false;
	ranges = bpf_sk_storage_get(&heads, sk, 0, 0);
	entry->container = label->container;
	entry->next = label->next;
	entry->tracked = label->flags & FIEF_LABEL_VERDICT;
	if (ranges && is_behind(ranges->read, end))
		entry->next = end;
	stream->read = ranges && heads_behind(ranges, p->seq + FIEF_QUEUE_MOST);
	label_leave(label);
	return true;
}

/* Bytes that TCP lacks, before what waits. */
enum gap {
	GAP_NONE,
	GAP_PART, /* the packet has some */
	GAP_END	  /* it has all that are left */
};

/* Which of them the packet has, and nothing else. Fills whose they are. */
static __noinline enum gap gap_look(struct __sk_buff *skb, const struct packet *p, struct stream *stream,
				    struct tcp_sock *tcp, __u32 *container)
{
	__u32 end = p->seq + p->payload_length;
	struct queue_waiting *waiting;
	struct fief_flow_key key;
	struct queue_held held;

	flow_key(p, &key);
	waiting = waiting_find(&key, &held);
	if (!waiting || !waiting->later || p->odd || p->flags & TCP_FIN || !is_behind(end, tcp->rcv_nxt) ||
	    is_behind(end, waiting->packet.seq) || !would_be_taken(skb, p, tcp, &stream->with))
		return GAP_NONE;
	*container = waiting->before;
	return end == waiting->packet.seq && !is_behind(p->seq, tcp->rcv_nxt) ? GAP_END : GAP_PART;
}

/* Whether the packet bears nothing of a head that TCP may lack: such a request has its turn in the queue (asked.bpf.h). */
static __noinline bool is_body(const struct packet *p, struct bpf_sock *sk, struct fief_label *label)
{
	__u32 end = p->seq + p->payload_length;
	struct head_ranges *ranges;
	struct head_range *range;
	bool body;
	int i;

	if (!label_take(label))
		return false;
	ranges = bpf_sk_storage_get(&heads, sk, 0, 0);
	body = ranges && !(label->flags & FIEF_LABEL_TAIL);
	bpf_for (i, 0, RANGES) {
		if (!body || ranges->count - ranges->first <= i)
			break;
		range = head_range(ranges, ranges->first + i);
		body = !is_behind(range->end, p->seq) || !is_behind(end, range->from);
	}
	label_leave(label);
	return body;
}

/*
 * Whether the packet passes before what waits of its connection, which TCP could not hand on without these bytes. The end of a request
 * takes its place again (late.bpf.h).
 */
static __always_inline bool gap_passes(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				       struct bpf_sock *sk, struct tcp_sock *tcp, struct fief_label *label)
{
	struct packet *p = &front->packet;
	__u32 container = FIEF_NO_ID;
	struct fief_queue *q;
	enum gap has = label && tcp ? gap_look(skb, p, stream, tcp, &container) : GAP_NONE;

	if (has == GAP_NONE || !is_body(p, sk, label))
		return false;
	if (has == GAP_END && payload_valid(skb, p, stream, false)) {
		place_again(p, front->guard->queue, container, tcp->write_seq, is_stopped(p, tcp, &stream->with));
		served_check(p, tcp);
		q = queue_get(front->guard->queue);
		if (q)
			placed_mark(skb, q);
	}
	return true;
}

static __always_inline int queue_take(struct __sk_buff *skb, struct front_context *front, __u32 what)
{
	struct stream *stream = stream_get();
	struct fief_label *label = NULL;
	struct fief_queue *q;
	struct tcp_sock *tcp = NULL;
	int verdict = TCX_DROP;
	struct bpf_sock *sk;
	__u32 state;

	if (!stream || !segment_guard_find(front))
		return what == QUEUE_WHOLE ? TCX_NEXT : TCX_DROP;
	sk = socket_find(skb, &front->packet, &front->listener);
	if (!sk)
		return what == QUEUE_WHOLE || front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : TCX_DROP;
	state = sk->state;
	barrier_var(state);
	if (state == BPF_TCP_LISTEN || has_stream(state))
		tcp = bpf_skc_to_tcp_sock(sk);
	if (has_stream(state))
		label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (what == QUEUE_WHOLE) {
		if (label && tcp && payload_valid(skb, &front->packet, stream, false)) {
			__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_OWES);
			q = queue_of_packet(skb, front->guard->queue);
			if (q) {
				place_again(&front->packet, front->guard->queue, label->container.id, label->answer_at,
					    is_stopped(&front->packet, tcp, &stream->with));
				served_check(&front->packet, tcp);
				placed_mark(skb, q);
			}
		}
		verdict = TCX_NEXT;
	} else if (what == QUEUE_REPEATS && gap_passes(skb, front, stream, sk, tcp, label)) {
		verdict = TCX_NEXT;
	} else if (what == QUEUE_REPEATS) {
		waiting_join(skb, front, stream, tcp);
		verdict = queue_repeated(skb, front, stream, tcp, label);
	} else if (what == QUEUE_LATER && label) {
		verdict = later_wait_for(front);
		if (label_read(sk, label, &front->packet, stream))
			verdict = queue_arrives(skb, front, stream, tcp, label, what);
	} else if (what != QUEUE_LATER) {
		verdict = queue_arrives(skb, front, stream, tcp, NULL, tcp ? what : QUEUE_UNHELD);
	}
	bpf_sk_release(sk);
	return verdict;
}
