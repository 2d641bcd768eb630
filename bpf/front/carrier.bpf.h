/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Carrier: a packet that brings a request from the queue to the server.
 *
 * Problem: a program has no packet of its own and no timer that could send one.
 * How: whatever shows that a place may be free (queue_wants) copies the packet at hand to the receiving side of its interface,
 * with a mark. That copy is a kick and nothing more: here it is decided whether a request goes, and which. Then it is made into
 * that client's segment, with the link header and the interface of that, and goes the way of any packet that arrives. So one
 * that is lost, doubled or forged changes nothing: the next one finds the same queue.
 *
 * At its end the request goes to the server, or is answered (deliver.bpf.h). One that went, and that TCP has not got, goes once more before
 * any other (carried.bpf.h).
 *
 * The mark is a random number that no packet on a wire can bear. A process with the right to set marks that guesses it can give
 * away a place that is free.
 * Limits: captures at the interface show the copies, as packets that arrive.
 */
#pragma once

#include "carried.bpf.h"
#include "charged.bpf.h"
#include "ticks.bpf.h"
#include "follows.bpf.h"

static __always_inline bool is_carrier(const struct __sk_buff *skb)
{
	return skb->mark && skb->mark == queue_mark();
}

/* What one goes by that waited. */
struct queue_picked {
	__u32 at;
	__u32 why;
	__u64 ends;
	__u32 elsewhere; /* interface of the one that is next, if it is another */
};

/* Whether the request goes at this interface, or at any (0), and nothing is put behind it now. Else fills where it does. */
static __always_inline bool link_goes(const struct queue_link *link, __u32 interface, __u32 *elsewhere)
{
	if (link->flags & LINK_GROWS)
		return false;
	if (link->interface == interface || !interface)
		return true;
	*elsewhere = link->interface;
	return false;
}

static __always_inline void queue_pick(struct fief_queue *q, struct queue_links *links, __u32 interface, __u64 now,
				       struct queue_picked *picked)
{
	struct fief_queue_class *of;
	struct queue_link *link;
	__u32 at = 0, class, elsewhere = 0, why = QUEUE_GOES;
	__u64 ends = 0;
	bool stuck, goes = false;

	bpf_spin_lock(&q->lock);
	places_run_out(q, now);
	queue_expire_all(q, links, now);
	stuck = (__s64)(now - q->stuck_ns) < 0;
	if (!(stuck && q->refusals.linked) && queue_room(q) && class_next(q, now, &class) &&
	    now <= queue_class(q, class)->late_ns) {
		of = queue_class(q, class);
		at = q->fair ? source_first(of) : of->list.first;
		if (stuck && queue_link(links, of->list.first)->flags & LINK_FULL)
			at = later_first(of, links) ?: at;
		link = queue_link(links, at);
		goes = link_goes(link, interface, &elsewhere);
		if (goes) {
			link->flags &= ~LINK_FULL;
			of->source_turn = link->source;
			queue_unlink(q, links, class, at);
			classes_passed(q, class);
			level_serves(q, of);
			class_left(q, of);
			waits_repay(of);
			ends = place_take(q, of, place_ends(q, now, link->flags & LINK_OWES));
		}
	} else if (q->refusals.linked) {
		at = q->refusals.first;
		link = queue_link(links, at);
		why = link->why;
		goes = link_goes(link, interface, &elsewhere);
		if (goes) {
			list_remove(&q->refusals, links, at, CHAIN_LINE);
			link->linked = QUEUE_NOWHERE;
			q->refused--;
		}
	} else if (queue_room(q) && q->bits) {
		q->until_ns = class_first_again(q);
	}
	bpf_spin_unlock(&q->lock);
	picked->at = goes ? at & (FIEF_QUEUE_SLOTS - 1) : 0;
	picked->why = why;
	picked->ends = ends;
	picked->elsewhere = elsewhere;
}

/* Gives the packet the request's family, and its link header. */
static __always_inline int carrier_frame(struct __sk_buff *skb, const struct queue_waiting *waiting)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	__u16 network = buffer->network_header - buffer->mac_header;
	__be16 protocol = waiting->packet.ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);

	if (network != waiting->packet.network)
		return -1;
	if (skb->protocol != protocol && bpf_skb_change_proto(skb, protocol, 0))
		return -1;
	if (network < sizeof(struct ethhdr))
		return 0;
	return bpf_skb_store_bytes(skb, 0, waiting->ethernet, sizeof(struct ethhdr), 0);
}

/* Makes the packet into the request's segment, whose bytes are in the stream. Negative: it is spoilt. */
static __noinline int carrier_write(struct __sk_buff *skb, struct packet *p, struct stream *stream, __u32 time)
{
	__u32 length = stream->length, head = sizeof(struct tcphdr), start = p->ipv6 ? 0 : 20;
	struct segment *s = segment_begin(p->seq, p->ack, p->window, TCP_ACK | TCP_PSH | (p->flags & TCP_FIN));
	bool partial = checksum_partial(skb);
	__u64 sum;

	if (!s)
		return -1;
	if (stream->with.timestamps) {
		*(__be32 *)s->rest = bpf_htonl(OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_TIMESTAMPS << 8 | 10);
		*(__be32 *)(s->rest + 4) = bpf_htonl(stream->with.timestamp);
		*(__be32 *)(s->rest + 8) = bpf_htonl(stream->with.echo);
		head += 12;
	}
	s->tcp.source = bpf_htons(p->source_port);
	s->tcp.dest = bpf_htons(p->destination_port);
	s->tcp.doff = head / 4;
	p->transport = p->network + 40 - start;
	p->payload = p->transport + head;
	p->payload_length = length;
	network_write(s, p, head + length, false, time);
	sum = pseudo_sum(p, head + length);
	if (partial) {
		s->tcp.check = fold_sum(sum);
	} else {
		sum += (__u32)bpf_csum_diff(NULL, 0, (__be32 *)&s->tcp, head, 0);
		sum += (__u32)stream_sum(stream, 0, length);
		s->tcp.check = ~fold_sum(sum);
	}
	if (bpf_skb_change_tail(skb, p->payload + length, 0))
		return -2;
	if (bpf_skb_store_bytes(skb, p->network, s->network + start, 40 - start + head, BPF_F_RECOMPUTE_CSUM))
		return -3;
	barrier_var(length);
	if (!length)
		return -4;
	barrier_var(length);
	if (length > FIEF_QUEUE_MOST)
		return -4;
	if (bpf_skb_store_bytes(skb, p->payload, stream->bytes, length, BPF_F_RECOMPUTE_CSUM))
		return -5;
	bpf_set_hash_invalid(skb);
	return 0;
}

/*
 * Meanwhile its client has acknowledged more of the answer before, or sent later what TCP lacked: TCP takes no data with an old
 * acknowledgement, or an old timestamp.
 */
static __noinline int carrier_freshen(struct __sk_buff *skb, struct packet *p, struct stream *stream)
{
	struct bpf_sock *sk = socket_find(skb, p, NULL);
	struct tcp_sock *tcp;
	__u32 state;

	if (!sk)
		return 0;
	state = sk->state;
	barrier_var(state);
	tcp = has_stream(state) ? bpf_skc_to_tcp_sock(sk) : NULL;
	if (tcp && is_behind(tcp->snd_una, p->ack)) {
		p->ack = tcp->snd_una;
		p->window = tcp->snd_wnd >> (BPF_CORE_READ_BITFIELD(tcp, rx_opt.snd_wscale) & 15);
	}
	if (tcp && is_behind(tcp->rx_opt.ts_recent, stream->with.timestamp))
		stream->with.timestamp = tcp->rx_opt.ts_recent;
	bpf_sk_release(sk);
	return 0;
}

/* Sends the carrier on to the interface where the next request came in. Not 0: there is no such. */
static __always_inline long carrier_forward(struct __sk_buff *skb, __u32 interface)
{
	return bpf_clone_redirect(skb, interface, BPF_F_INGRESS);
}

/* Which request goes with a carrier, of those that wait. False: none does. */
static __always_inline bool carrier_pick(struct __sk_buff *skb, struct fief_queue *q, struct queue_links *links,
					 bool ticks, __u64 now, struct queue_picked *picked)
{
	queue_pick(q, links, skb->ifindex, now, picked);
	if (picked->elsewhere) {
		if (!carrier_forward(skb, picked->elsewhere))
			return false;
		if (ticks) {
			queue_is_stuck(q, now);
			return false; /* by the clock's own interface nothing reaches a server */
		}
		queue_pick(q, links, 0, now, picked); /* that interface is gone, or down */
	}
	if (!picked->at && !ticks)
		__sync_fetch_and_add(&q->idle_kicks, 1);
	return picked->at;
}

/* A carrier has come. Fills `to` for queue_delivers; negative: nobody goes with it. */
static __always_inline int carrier_load(struct __sk_buff *skb, struct queue_handed *to)
{
	__u32 number = skb->tc_index & ~FROM_CLOCK;
	bool ticks = skb->tc_index & FROM_CLOCK;
	struct fief_queue *q = queue_of_packet(skb, number);
	struct queue_links *links = queue_links();
	struct stream *stream = stream_get();
	struct queue_waiting *waiting;
	struct queue_picked picked;
	__u64 now = bpf_ktime_get_ns();
	bool loaded;

	if (!q || !links || !stream || bpf_skb_change_tail(skb, CARRIER_LEAST, 0))
		return -1;
	if (ticks && !tick_back(skb, q))
		return -1;
	skb->tc_index = number; /* of a copy that goes on to another interface */
	picked.at = *(volatile __u32 *)&q->carried.linked ? carried_goes(skb, number, now, ticks) : 0;
	/* behind it: while one was out of the list, a tick may have found nobody, and ended */
	tick_send(skb, q, number, now);
	picked.at &= FIEF_QUEUE_SLOTS - 1;
	picked.why = queue_link(links, picked.at)->why;
	picked.ends = 0;
	if (!picked.at && !carrier_pick(skb, q, links, ticks, now, &picked))
		return -1;
	waiting = bpf_map_lookup_elem(&queue_waits, &picked.at);
	if (!waiting)
		return -1;
	class_settle(q, queue_link(links, picked.at)->class, now);
	skb->mark = 0;
	skb->tc_index = 0;
	bpf_skb_change_type(skb, PACKET_HOST);
	to->packet = waiting->packet;
	to->slot = policy_slot();
	to->what = waiting->later ? QUEUE_LATER : QUEUE_FIRST;
	to->link = picked.at;
	to->turn.queue = number;
	to->turn.class = queue_link(links, picked.at)->class;
	to->turn.since_ns = waiting->since_ns;
	to->why = picked.why;
	to->turn.ends = picked.ends;
	loaded = waiting_load(waiting, picked.at, stream);
	if (waiting->later)
		carrier_freshen(skb, &to->packet, stream);
	if (loaded && !carrier_frame(skb, waiting) && !carrier_write(skb, &to->packet, stream, waiting->time))
		return 0;
	if (was_carried(picked.why)) {
		carried_keep(q, links, picked.at, now + CARRIED_NS);
		return -1;
	}
	if (picked.why == QUEUE_GOES) {
		place_give(q, to->turn.class, picked.ends);
		if (queue_put_back(q, links, picked.at, 0) != BACK_ENDED)
			return -1;
	}
	waiting_forget(links, picked.at); /* its client is not told until it says more */
	return -1;
}
