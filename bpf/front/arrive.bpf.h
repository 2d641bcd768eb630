/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Arrive: which bytes to a socket are ruled (later.bpf.h), and which pass.
 *
 * Problem: most packets bear bodies, and must cost little. But no byte may pass by what was said of others: those of a verdict
 * that TCP has not taken, or those that another CPU rules at this moment.
 * How: a label that says TAKEN lets bytes pass up to its `next`, or all of them, where nothing is ruled any more (but for the turns
 * of a client, turns.bpf.h). Everything else
 * takes the label for itself (`busy`): from the first look at what is known until what passes is noted. A packet that finds it
 * taken is dropped, and comes again. The next place is written before that mark is, and read in the other order.
 * Where TCP has taken no byte, and no head was noted on the socket, nothing is known of the connection, whatever verdict made
 * it: its first bytes are ruled, and what is behind them comes again.
 * Limits: the packets of one connection that come to two CPUs at once may wait for the client to send them again.
 */
#pragma once

#include "admitted.bpf.h"
#include "asked.bpf.h"
#include "cut.bpf.h"
#include "early.bpf.h"
#include "labelled.bpf.h"
#include "late.bpf.h"
#include "later.bpf.h"
#include "tracked.bpf.h"
#include "heads.bpf.h"
#include "taken.bpf.h"
#include "turns.bpf.h"

/* As TCX_NEXT: the packet ends its client's side, and that is noted. */
#define END_NOTED -8

/* Another CPU rules the connection. */
static __always_inline int busy_rule(struct __sk_buff *skb, struct front_context *front)
{
	if (!segment_guard_find(front) || !requests_ruled(front) || front->guard->flags & FIEF_GUARD_MONITOR)
		return TCX_NEXT;
	early_send(skb);
	return TCX_DROP;
}

/* Whether the packet ends before the next request, and TCP has all heads that were ruled. */
static __always_inline bool is_before_next(const struct fief_label *label, const struct packet *p)
{
	const __u32 settled = FIEF_LABEL_TRACKED | FIEF_LABEL_TAKEN;
	__u32 next = *(const volatile __u32 *)&label->next;

	barrier();
	/* where an odd packet ends is not known for sure */
	return (*(const volatile __u32 *)&label->flags & (settled | FIEF_LABEL_OWES)) == settled && !p->odd &&
	       !is_behind(p->seq + p->payload_length, next);
}

/* Whether the connection is ruled no longer, under these rules. */
static __always_inline bool is_passed(struct front_context *front, const struct fief_label *label)
{
	const __u32 settled = FIEF_LABEL_PASSED | FIEF_LABEL_TAKEN;

	return (*(const volatile __u32 *)&label->flags & settled) == settled && segment_guard_find(front) &&
	       label->next == front->guard->rules;
}

/* Whether a packet on a tracked connection may pass unread: it ends before the next request, and replaces no head. */
static __always_inline bool is_settled(const struct packet *p, struct fief_label *label, struct tcp_sock *tcp,
				       const struct head_ranges *ranges)
{
	bool taken = !ranges || !is_behind(ranges->read, tcp->rcv_nxt);

	if (p->odd || label->flags & FIEF_LABEL_TAIL || is_behind(p->seq + p->payload_length, label->next))
		return false;
	if (taken)
		__sync_fetch_and_or(&label->flags, FIEF_LABEL_TAKEN);
	return taken || !is_behind(ranges->read, p->seq);
}

/* Whether requests on this connection are to be ruled that came unseen before: these rules did not let it pass. */
static __always_inline bool is_lost(struct front_context *front, struct fief_label *label, struct tcp_sock *tcp)
{
	if (!tcp->bytes_received || !segment_guard_find(front) || !front->guard->shapes)
		return false;
	if (label->flags & FIEF_LABEL_PASSED && label->next == front->guard->rules)
		return false;
	if (!(front->guard->flags & FIEF_GUARD_LATER)) {
		later_untrack(front, label, 0);
		return false;
	}
	__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_PASSED);
	label->next = tcp->rcv_nxt;
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_TRACKED | FIEF_LABEL_LOST);
	return true;
}

/* Whether a packet on a connection that is not tracked may pass. */
static __always_inline bool is_free(struct front_context *front, struct fief_label *label, struct tcp_sock *tcp,
				    const struct head_ranges *ranges)
{
	if (label->flags & FIEF_LABEL_PASSED && ranges && is_behind(ranges->read, tcp->rcv_nxt))
		return !is_behind(ranges->read, front->packet.seq);
	if (label->flags & FIEF_LABEL_PASSED)
		__sync_fetch_and_or(&label->flags, FIEF_LABEL_TAKEN);
	return !is_lost(front, label, tcp);
}

/* The heads that were noted on this connection: `ranges`, if there are any, or a record for them. NULL: no memory. */
static __always_inline struct head_ranges *heads_get(struct bpf_sock *sk, struct tcp_sock *tcp,
						     struct head_ranges *ranges)
{
	if (ranges)
		return ranges;
	ranges = bpf_sk_storage_get(&heads, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (ranges)
		ranges->read = ranges->asked = tcp->rcv_nxt;
	return ranges;
}

static __always_inline bool is_bare_end(const struct packet *p)
{
	return !p->payload_length && !p->odd;
}

/*
 * Whether the end of a client's side, to a socket without a label, passes unread, as most do. Then the verdict's connection has ended. Not
 * if it may be that of half a request; nor behind bytes of which TCP has none: it must not end the begin of a request that then comes.
 */
static __noinline bool end_passes(const struct packet *p, struct tcp_sock *tcp)
{
	struct fief_admitted *entry;
	struct fief_flow_key key;

	if (!tcp->bytes_received && is_behind(p->seq, tcp->rcv_nxt))
		return false;
	flow_key(p, &key);
	entry = admitted_find(&key);
	if (entry && (entry->tracked & FIEF_LABEL_TAIL ||
		      (entry->tracked & FIEF_LABEL_TRACKED && is_behind(p->seq, entry->next))))
		return false;
	if (tcp->rcv_nxt == p->seq)
		verdict_spend(entry, p->seq);
	return true;
}

/* A packet whose label is taken. */
static __noinline int arrival_rule(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk,
				   struct connection *on)
{
	struct packet *p = &front->packet;
	struct fief_label *label = on->label;
	struct tcp_sock *tcp = on->tcp;
	struct stream *stream;
	bool fresh, tail;
	int verdict;

	on->owes = label->flags & FIEF_LABEL_OWES;
	on->ranges = bpf_sk_storage_get(&heads, sk, 0, 0);
	fresh = !on->ranges && !tcp->bytes_received;
	if (!fresh && label->flags & FIEF_LABEL_TRACKED && is_settled(p, label, tcp, on->ranges))
		return TCX_NEXT;
	if (!segment_guard_find(front))
		return TCX_NEXT;
	tail = !fresh && label->flags & FIEF_LABEL_TAIL;
	if (!(label->flags & FIEF_LABEL_TRACKED) && !tail) {
		if (fresh ? label->listener == FIEF_NO_LISTENER || !requests_ruled(front)
			  : is_free(front, label, tcp, on->ranges))
			return label->flags & FIEF_LABEL_TURNS ? LATER_FREE : TCX_NEXT;
	}
	if (p->odd)
		return shape_rule(front);
	stream = stream_get();
	if (!stream)
		return TCX_NEXT;
	if (!would_be_taken(skb, p, tcp, &stream->with))
		return untaken_strip(skb, front, stream, tcp);
	if (fresh && !begin_take(skb, front, on))
		return later_wait_for(front);
	on->ranges = heads_get(sk, tcp, on->ranges);
	if (on->ranges) {
		verdict = requests_rule(skb, front, on, stream);
		return front->guard->queue ? asked_rule(front, on, verdict) : verdict;
	}
	/* no memory is left for the heads, as for a label (labelled.bpf.h) */
	verdict = later_unread(front, label, stream, FIEF_UNREAD_NO_ROOM);
	return verdict == LATER_REFUSED ? refuse_at(skb, front, stream, tcp) : verdict;
}

/* Bytes to a socket with a label, or the end of them. */
static __always_inline int labelled_arrive(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk,
					   struct connection *on)
{
	int verdict;

	if (!label_take(on->label))
		return busy_rule(skb, front);
	guard_forget(front);
	verdict = arrival_rule(skb, front, sk, on);
	if (verdict == TCX_NEXT && on->owes)
		verdict = late_rule(skb, front, on);
	label_leave(on->label);
	if (verdict != LATER_FREE)
		return verdict;
	return segment_guard_find(front) ? turn_rule(skb, front, on->tcp) : TCX_NEXT;
}

/* Bytes to a socket that is there, or the end of them. A verdict, or END_NOTED. */
static __always_inline int data_arrives(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk)
{
	struct packet *p = &front->packet;
	struct connection on = {.label = bpf_sk_storage_get(&labels, sk, 0, 0)};
	bool passes;

	if (on.label && on.label->flags & FIEF_LABEL_WAITS)
		return QUEUE_REPEATS;
	if (on.label && is_before_next(on.label, p))
		return TCX_NEXT;
	passes = on.label && is_passed(front, on.label);
	if (passes && !(on.label->flags & FIEF_LABEL_TURNS))
		return TCX_NEXT;
	on.tcp = bpf_skc_to_tcp_sock(sk);
	if (!on.tcp)
		return TCX_NEXT;
	if (passes)
		return turn_rule(skb, front, on.tcp);
	if (!on.label && is_bare_end(p) && end_passes(p, on.tcp))
		return END_NOTED;
	if (!on.label)
		on.label = label_make(front, sk, on.tcp);
	if (on.label)
		return labelled_arrive(skb, front, sk, &on);
	return front->guard && front->guard->shapes ? unlabelled_rule(skb, front, on.tcp) : TCX_NEXT;
}
