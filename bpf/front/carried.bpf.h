/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Carried: a request that waited is kept until TCP has it.
 *
 *   TCP has it, or its connection has ended     it is forgotten
 *   a thread has its socket at this moment      it is looked at again, 2 ms later
 *   its server leaves no room for it            the same, 150 ms later, for as long as that is so, up to a minute
 *   it was lost                                 it is carried again, 150 ms after it first was, and then each time twice as late
 *   it is lost, 4 s after it first was          its client is refused
 *
 * Problem: its bytes were acknowledged in the server's name, so nobody sends them again. A filter or a policer behind the door,
 * rp_filter, a lack of memory or a full receive buffer may drop the packet that brings them, and its client would hear nothing.
 * How: it stays in a list of the queue, and the carriers and the clock that follow look at the first of that: TCP has a packet as soon
 * as the door's program has let it pass. Its socket's next number says whether TCP has it. To what comes of its connection meanwhile it
 * is a request that its server has (hold_end): it keeps nobody waiting, and TCP throws away what it gets twice.
 * A first request has no socket before TCP has it, and none once its connection has ended. It must not make that anew then, as its
 * server would do all of it twice. So it goes again only while its note in queue_serves says that neither an answer to it nor an end of
 * its connection was seen (was_there). And not at once: a socket's end is told behind its way out of the kernel's table, and a virtual
 * CPU may stand still between the two, as between the door and TCP (claim.bpf.h). Where there is a socket, it is by the numbers of both
 * ends that it is known to be the same connection's: a client chooses its own. And TCP must have nothing of a first request, as its client
 * may have sent something else in its place meanwhile, which was ruled.
 * Limits: what stands longer than that between the door and TCP (a firewall's queue for user space) gets there twice, which matters for
 * a first request alone whose server has answered unseen and reset the connection by then. One whose note others pushed out of its
 * table is not carried again. Nor is one behind bytes that TCP lacks, while TCP keeps others of its connection; one without the guard or
 * the clock that it came with; and of those above CARRIED_MOST, or above CARRIED_FEW while half of the queue's memory is in use, the oldest.
 * A place that runs out meanwhile is not taken again.
 */
#pragma once

#include "lined.bpf.h"
#include "listening.bpf.h"
#include "places.bpf.h"
#include "taken.bpf.h"

#define CARRIED_NS	 2000000ull
#define CARRIED_AGAIN_NS (CLAIM_MS * 1000000ull)
#define CARRIED_LAST_NS	 4000000000ull
#define CARRIED_ENDS_NS	 12000000000ull /* its client cannot even be told: its interface is down, or gone */
#define CARRIED_FULL_NS	 60000000000ull /* a server that reads nothing for so long is not waited for */
#define CARRIED_MOST	 256		/* of a queue */
#define CARRIED_FEW	 32
#define CARRIED_LOOKS	 8		  /* of a carrier */
#define CARRIED_SETTLED	 FIEF_QUEUE_SLOTS /* the number of no link */

/* What TCP has of it. */
enum carried {
	CARRIED_THERE, /* all, or it is nobody's any more */
	CARRIED_BUSY,
	CARRIED_FULL,
	CARRIED_LOST
};

/* Whether it was carried, and TCP has not got it. `why`: enum queue_end. */
static __always_inline bool was_carried(__u32 why)
{
	return why == QUEUE_LOST || why == QUEUE_AGAIN;
}

/* Whether the time of one that is to be looked at `then` is over, or so far off that others come first. */
static __always_inline bool carried_moves(__u64 then, __u64 now)
{
	return then - now - 1 >= CARRIED_NS;
}

/* The first whose time is over, out of its list; 0: there is none. */
static __noinline __u32 carried_take(struct fief_queue *q, struct queue_links *links, __u64 now)
{
	struct queue_link *link;
	__u32 at, i, due = 0;

	bpf_spin_lock(&q->lock);
	for (i = loop_from(0); i < CARRIED_LOOKS && can_loop; i++) {
		at = q->carried.first;
		link = queue_link(links, at);
		if (due || !q->carried.linked || !carried_moves(link->since_ns, now))
			break;
		list_remove(&q->carried, links, at, CHAIN_LINE);
		if (link->since_ns <= now) {
			link->linked = QUEUE_NOWHERE;
			due = at;
		} else {
			list_append(&q->carried, links, at, CHAIN_LINE);
		}
	}
	bpf_spin_unlock(&q->lock);
	return due & (FIEF_QUEUE_SLOTS - 1);
}

/* Whether so many are kept that one has to be forgotten. */
static __always_inline bool carried_too_many(struct fief_queue *q)
{
	return q->carried.linked > CARRIED_MOST ||
	       (q->carried.linked > CARRIED_FEW && *(const volatile __u64 *)&q->kept > q->memory / 2);
}

/* It is to be looked at `then`, or before all others (0). Where the queue is about to be removed, it is forgotten. */
static __noinline int carried_keep(struct fief_queue *q, struct queue_links *links, __u32 at, __u64 then)
{
	struct queue_link *link = queue_link(links, at);
	__u32 out = at;

	bpf_spin_lock(&q->lock);
	if (!(q->open & QUEUE_ENDS)) {
		out = 0;
		link->since_ns = then;
		link->linked = QUEUE_CARRIED;
		if (then)
			list_append(&q->carried, links, at, CHAIN_LINE);
		else
			list_prepend(&q->carried, links, at, CHAIN_LINE);
		if (carried_too_many(q)) {
			out = then ? q->carried.first : q->carried.last;
			list_remove(&q->carried, links, out, CHAIN_LINE);
			queue_link(links, out)->linked = QUEUE_NOWHERE;
		}
	}
	bpf_spin_unlock(&q->lock);
	if (out)
		waiting_forget(links, out);
	return 0;
}

/* The numbers that the packet's connection began with, the server's first. `tcp`: its socket, if it has one. */
static __always_inline __u64 connection_begin(const struct packet *p, struct tcp_sock *tcp)
{
	__u32 begin = p->seq, answers = p->ack;

	barrier_var(begin); /* one load for both would be of two kinds of memory */
	barrier_var(answers);
	if (tcp) {
		begin = tcp->rcv_nxt - (__u32)tcp->bytes_received;
		answers = tcp->snd_una - (__u32)tcp->bytes_acked;
	}
	barrier_var(begin);
	barrier_var(answers);
	return (__u64)answers << 32 | begin;
}

/*
 * The request goes to TCP with the packet at hand. `begin`: of connection_begin(). A global function: the verifier would follow it from each
 * way to it.
 */
__noinline int carried_begin(__u32 queue, __u32 at, __u64 begin)
{
	struct queue_waiting *waiting = bpf_map_lookup_elem(&queue_waits, &at);
	struct queue_links *links = queue_links();
	struct fief_queue *q = queue_get(queue);
	__u64 now = bpf_ktime_get_ns();

	if (!waiting || !links)
		return 0;
	if (!q)
		return waiting_forget(links, at);
	if (!waiting->carried_ns) {
		waiting->carried_ns = now;
		waiting->begin = begin;
		waiting->answers = begin >> 32;
		waiting->full_ns = 0;
		hold_end(waiting, at);
	}
	queue_link(links, at)->flags &= ~LINK_LOST;
	carried_keep(q, links, at, now + CARRIED_NS);
	return 0;
}

/* Whether the socket is that of the connection that the request was carried to before. */
static __always_inline bool is_carried_to(const struct queue_waiting *waiting, struct tcp_sock *tcp)
{
	return tcp->rcv_nxt - (__u32)tcp->bytes_received == waiting->begin &&
	       tcp->snd_una - (__u32)tcp->bytes_acked == waiting->answers;
}

/* Whether the server has the request, by what was noted of it: neither an answer to it nor an end was seen, nor went another one. */
static __always_inline bool is_noted(const struct queue_waiting *waiting)
{
	struct fief_served *served = bpf_map_lookup_elem(&queue_serves, &waiting->key);

	return served && served->since_ns == waiting->since_ns;
}

/* What the socket of its flow has of it, which may be another connection's by now. */
static __always_inline enum carried carried_by(const struct queue_waiting *waiting, struct tcp_sock *tcp)
{
	__u32 begin = waiting->packet.seq, end = begin + waiting->length, next = tcp->rcv_nxt;
	struct sock *sk = &tcp->inet_conn.icsk_inet.sk;

	if (!is_behind(end, next))
		return CARRIED_THERE;
	if (is_busy(tcp))
		return CARRIED_BUSY;
	if (!is_carried_to(waiting, tcp))
		return CARRIED_THERE;
	if (waiting->first && (next != begin || !is_noted(waiting)))
		return CARRIED_THERE;
	if (is_behind(begin, next) && BPF_CORE_READ(tcp, out_of_order_queue.rb_node))
		return CARRIED_THERE;
	/* as the kernel's tcp_try_rmem_schedule(), and its window where that was tried with a byte beyond it */
	if (sk->sk_backlog.rmem_alloc.counter > sk->sk_rcvbuf || is_behind(end, tcp->rcv_wup + tcp->rcv_wnd))
		return CARRIED_FULL;
	return CARRIED_LOST;
}

/*
 * There is no socket: whether there was one. Its client's reset is noted in queue_serves, too (queue_reset), and its end in the verdict
 * (admitted_ended).
 */
static __always_inline bool was_there(const struct queue_waiting *waiting)
{
	struct fief_admitted *verdict;

	if (!is_noted(waiting))
		return true;
	verdict = admitted_find(&waiting->key);
	return verdict && verdict->begin == waiting->begin && verdict->spent;
}

/* `here`: the kernel's lookup is that of packets of its interface, as a socket may be bound to that. */
static __noinline enum carried carried_look(struct __sk_buff *skb, struct queue_waiting *waiting, bool here)
{
	struct bpf_sock *sk = socket_find(skb, &waiting->packet, NULL);
	enum carried has = CARRIED_LOST;
	struct tcp_sock *tcp = NULL;
	bool absent = true;
	__u32 state;

	if (sk) {
		state = sk->state;
		barrier_var(state);
		absent = state == BPF_TCP_LISTEN;
		if (has_stream(state))
			tcp = bpf_skc_to_tcp_sock(sk);
		if (tcp) {
			has = carried_by(waiting, tcp);
			waiting->later = 1;
		} else if (!absent) {
			/* its connection is made at this moment; or another one is, or it is at its end */
			has = state == BPF_TCP_SYN_RECV ? CARRIED_BUSY : CARRIED_THERE;
		}
		bpf_sk_release(sk);
	}
	if (!absent)
		return has;
	return (here && waiting->later) || was_there(waiting) ? CARRIED_THERE : CARRIED_LOST;
}

/* Looks at one. 0: none is due; CARRIED_SETTLED; or the link of one that goes once more, out of its list. */
static __always_inline __u32 carried_check(struct __sk_buff *skb, struct fief_queue *q, struct queue_links *links,
					   __u64 now)
{
	struct queue_waiting *waiting;
	struct queue_link *link;
	__u64 age, then;
	__u32 at = *(const volatile __u16 *)&q->carried.first;
	enum carried has;

	if (!*(const volatile __u32 *)&q->carried.linked ||
	    !carried_moves(*(const volatile __u64 *)&queue_link(links, at)->since_ns, now))
		return 0; /* without the lock: most carriers find nothing that is due */
	at = carried_take(q, links, now);
	waiting = at ? bpf_map_lookup_elem(&queue_waits, &at) : NULL;
	if (!waiting)
		return 0;
	link = queue_link(links, at);
	age = now - waiting->carried_ns;
	has = q->open & QUEUE_ENDS ? CARRIED_THERE : carried_look(skb, waiting, link->interface == skb->ifindex);
	if (has == CARRIED_THERE || age > CARRIED_ENDS_NS) {
		waiting_forget(links, at);
		return CARRIED_SETTLED;
	}
	if (has == CARRIED_LOST && link->flags & LINK_LOST) {
		link->why = age < CARRIED_LAST_NS ? QUEUE_AGAIN : QUEUE_LOST;
		return at;
	}
	if (has == CARRIED_FULL && !waiting->full_ns)
		waiting->full_ns = now;
	if (has == CARRIED_FULL && now - waiting->full_ns < CARRIED_FULL_NS) {
		/* as if it went now: it does once there is room */
		waiting->carried_ns = now;
		age = 0;
	}
	then = now + CARRIED_NS;
	if (has != CARRIED_BUSY) {
		link->flags |= LINK_LOST;
		then = waiting->carried_ns + (2 * age > CARRIED_AGAIN_NS ? 2 * age : CARRIED_AGAIN_NS);
	}
	if (has != CARRIED_BUSY && age >= CARRIED_LAST_NS)
		then = now + CARRIED_NS; /* it is refused then */
	carried_keep(q, links, at, then);
	return CARRIED_SETTLED;
}

/*
 * A carrier has come to the queue: looks at those that went before. The link of one that goes with it, out of its list, whose `why` says how;
 * 0: none does. `ticks`: it came by the clock's interface, by which nothing reaches a server. Global, as carried_begin().
 */
__noinline int carried_goes(struct __sk_buff *skb, __u32 queue, __u64 now, __u32 ticks)
{
	struct queue_links *links = queue_links();
	struct fief_queue *q = queue_get(queue);
	__u32 at, interface;
	bool forwarded;
	int i;

	if (!q || !links)
		return 0;
	bpf_for (i, 0, CARRIED_LOOKS) {
		at = carried_check(skb, q, links, now);
		if (!at)
			break;
		if (at == CARRIED_SETTLED)
			continue;
		interface = queue_link(links, at)->interface;
		if (interface == skb->ifindex)
			return at;
		forwarded = ticks && !bpf_clone_redirect(skb, interface, BPF_F_INGRESS);
		carried_keep(q, links, at, forwarded ? 0 : now + CARRIED_NS);
		if (forwarded)
			break;
	}
	return 0;
}
