/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stray: a segment without a socket and without a valid cookie.
 *
 * It is the rest of a header that is held, or comes right behind a verdict, or belongs to a connection that the server has
 * forgotten (whom the kernel tells so by a reset), or ends one that was refused, or is of a flow whose addresses are
 * translated behind us, or comes with a cookie that has run out, which draws a reset. What is left is dropped and counted
 * (strict): passed on, it would draw a reset upon a client whose first segment was lost.
 *
 * Limits: a forgotten connection is known by its verdict, as long as `admitted` remembers it and for its first 16 MiB each
 * way; one that the kernel made by itself only where requests are ruled. Other clients find out by time.
 */
#pragma once

#include "admit.bpf.h"
#include "conntrack.bpf.h"
#include "guard.bpf.h"
#include "kernel_cookie.bpf.h"

/*
 * Bad segments that are looked at: without timestamps a cookie is 23 bits, and is forged by who may try often enough. Each
 * prefix (IPv4 /24, IPv6 /48) has a budget of its own, a proven source one apart from its prefix, so that who forges
 * segments from anywhere spends other budgets than those of the clients that connect. One source forges a cookie a week.
 * A spoofer can spend the budget of a client's network. What was sent before is looked at all the same (resent.bpf.h): a client
 * sends its first bytes again, and a guess that is sent twice costs twice.
 */
#define BAD_INTERVAL_NS	 62500000ull /* 16 a second */
#define BAD_TOLERANCE_NS 1000000000ull
#define BAD_BUDGETS	 65536

/* Buckets as struct fief_bucket's, found by a keyed hash. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BAD_BUDGETS);
	__type(key, __u32);
	__type(value, __u64);
} bad_arrivals SEC(".maps");

static __noinline __u64 *bad_budget(const struct front_context *front)
{
	__u32 zero = 0, at;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	bool proven = source_proven(front);
	__u64 whose[2];

	if (!secret)
		return NULL;
	__builtin_memcpy(whose, front->packet.source, 16);
	if (!proven)
		network_take(whose, front->packet.ipv6);
	else if (front->packet.ipv6)
		whose[1] = 0;
	at = hash_mix(address_hash(secret, whose) ^ proven ^ secret->pattern[0]) & (BAD_BUDGETS - 1);
	return bpf_map_lookup_elem(&bad_arrivals, &at);
}

static __always_inline bool bad_too_many(const struct front_context *front)
{
	__u64 *budget = bad_budget(front), arrival;

	if (!budget)
		return false;
	arrival = *(volatile __u64 *)budget;
	return arrival > front->now && arrival - front->now > BAD_TOLERANCE_NS;
}

static __always_inline void bad_count(const struct front_context *front)
{
	__u64 *budget = bad_budget(front), arrival;

	if (!budget)
		return;
	arrival = *(volatile __u64 *)budget;
	if (arrival < front->now)
		__sync_val_compare_and_swap(budget, arrival, front->now + BAD_INTERVAL_NS);
	else if (arrival - front->now <= BAD_TOLERANCE_NS)
		__sync_fetch_and_add(budget, BAD_INTERVAL_NS);
}

/*
 * The verdict made a socket, or will in a moment: packets of one batch pass here before the first of them has reached
 * TCP. Later than that it has failed, and a segment that is passed on would draw a reset.
 */
#define ADMITTED_FRESH_NS 2000000ull

/*
 * Whether the connection that was admitted had its socket: the client has been answered by it. Where servers close first,
 * this is what a full table of TIME_WAIT leaves: a client whose end is not acknowledged sends it again and again.
 */
static __always_inline bool was_answered(const struct fief_admitted *entry, const struct packet *p)
{
	return p->seq - entry->begin < FORGOTTEN_BYTES && p->ack - entry->answer - 1 < FORGOTTEN_BYTES;
}

/* A verdict, or STREAM_ENDS: nothing was admitted. The next request cannot be ruled before the socket is there. */
static __noinline int once_admitted(struct front_context *front)
{
	const struct packet *p = &front->packet;
	struct fief_admitted *entry;
	struct fief_flow_key key;

	flow_key(p, &key);
	entry = admitted_find(&key);
	if (!entry)
		return STREAM_ENDS;
	if (was_answered(entry, p))
		return TCX_NEXT;
	if (entry->spent || front->now - entry->time_ns >= ADMITTED_FRESH_NS)
		return STREAM_ENDS;
	if (entry->tracked & FIEF_LABEL_TRACKED && is_behind(p->seq + p->payload_length, entry->next))
		return TCX_DROP; /* it comes again */
	return TCX_NEXT;
}

/*
 * Counts the segment. Its client learns that there is no connection, as from a server that has closed it, and can make another
 * one.
 */
static __noinline int no_connection(struct __sk_buff *skb, struct front_context *front, enum fief_reason reason)
{
	struct packet *p = &front->packet;
	struct segment *s;

	count_drop(front, reason);
	s = segment_begin(p->ack, packet_end(p), 0, TCP_ACK | TCP_RST);
	return s ? segment_answer(skb, p, s) : TCX_DROP;
}

/* Whether the segment comes with a cookie that was good once. */
static __always_inline bool ran_out(struct front_context *front, const struct handshake *with)
{
	if (front->guard->flags & FIEF_GUARD_KERNEL)
		return kernel_cookie_ran_out(with, front->now);
	return cookie_ran_out(&front->packet, front->now);
}

/* The stream of a connection begins with the segment. */
static __always_inline void stream_open(const struct packet *p, struct stream *stream)
{
	stream->first = p->seq - 1;
	stream->first -= stream->with.missing;
	stream->cookie = p->ack - 1;
	stream->length = 0;
	stream->held = HALF_NONE;
	stream->known = 0;
	stream->doubted = 0;
}

/*
 * The kernel answered its SYN before we did, with a cookie of its own. Without bytes it makes the connection, and the request
 * is ruled as it passes; bytes would reach the server with the socket, and are ruled here.
 */
static __noinline int kernel_answered(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				      struct stream *stream)
{
	struct packet *p = &front->packet;

	if (is_bare(p))
		return TCX_NEXT;
	if (cookie_spent(p))
		return count_drop(front, FIEF_ACK_BAD);
	kernel_cookie_read(p, listening, &stream->with);
	stream->with.missing = 0;
	stream_open(p, stream);
	return bytes_gather(skb, p, stream);
}

/* A verdict, or STREAM_ENDS. */
static __noinline int stray_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				 struct stream *stream)
{
	struct packet *p = &front->packet;
	int verdict;

	if (!is_bare(p) && hold_find(p, stream)) {
		if (source_penalised(front))
			return penalised_rule(skb, front);
		if (front->guard->flags & FIEF_GUARD_KERNEL)
			kernel_cookie_read(p, listening, &stream->with);
		else
			cookie_read(p, stream->cookie, &stream->with);
		return bytes_gather(skb, p, stream);
	}
	verdict = once_admitted(front);
	if (verdict != STREAM_ENDS)
		return verdict;
	verdict = answer_ends(skb, front, &stream->with);
	if (verdict >= 0)
		return verdict;
	if (!is_bare(p) && half_lost(&stream->half))
		return no_connection(skb, front, unread_reason(FIEF_UNREAD_NO_ROOM, true));
	if (!admit_in_force(front) || (tracked_status(skb, p) & ADDRESSES_TRANSLATED))
		return TCX_NEXT;
	if (kernel_cookie_check(p))
		return source_penalised(front) ? penalised_rule(skb, front)
					       : kernel_answered(skb, front, listening, stream);
	bad_count(front);
	if (!bad_too_many(front) && ran_out(front, &stream->with))
		return no_connection(skb, front, FIEF_ACK_BAD);
	return count_drop(front, FIEF_ACK_BAD);
}
