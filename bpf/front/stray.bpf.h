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
 * Bad segments that are looked at in a second: without timestamps a cookie is 23 bits, so one in two hours is forged. Who
 * returned a cookie before is looked at in any case.
 */
#define BAD_INTERVAL_NS	 1000000ull
#define BAD_TOLERANCE_NS 1000000000ull

__u64 bad_arrival_ns; /* a bucket as struct fief_bucket's */

static __always_inline bool bad_too_many(__u64 now)
{
	__u64 arrival = *(volatile __u64 *)&bad_arrival_ns;

	return arrival > now && arrival - now > BAD_TOLERANCE_NS;
}

static __always_inline void bad_count(__u64 now)
{
	__u64 arrival = *(volatile __u64 *)&bad_arrival_ns;

	if (arrival < now)
		__sync_val_compare_and_swap(&bad_arrival_ns, arrival, now + BAD_INTERVAL_NS);
	else if (arrival - now <= BAD_TOLERANCE_NS)
		__sync_fetch_and_add(&bad_arrival_ns, BAD_INTERVAL_NS);
}

/*
 * The verdict made a socket, or will in a moment: packets of one batch pass here before the first of them has reached
 * TCP. Later than that it has failed, and a segment that is passed on would draw a reset.
 */
#define ADMITTED_FRESH_NS 2000000ull

/* So far apart are numbers of one connection at most. With more, a later one with the same ports could be taken for it. */
#define FORGOTTEN_BYTES (1u << 24)

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
	if (entry->tracked && is_behind(p->seq + p->payload_length, entry->next))
		return TCX_DROP; /* it comes again */
	return TCX_NEXT;
}

/* Its client learns that the connection is none, as from a server that has closed it, and can make another one. */
static __noinline int too_late(struct __sk_buff *skb, struct front_context *front)
{
	struct packet *p = &front->packet;
	struct segment *s;

	count_drop(front, FIEF_ACK_BAD);
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

/* A verdict, or STREAM_ENDS. */
static __noinline int stray_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *listening,
				 struct stream *stream)
{
	struct packet *p = &front->packet;
	int verdict;

	if (!is_bare(p) && hold_find(p, stream)) {
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
	if (!admit_in_force(front) || (tracked_status(skb, p) & ADDRESSES_TRANSLATED) || kernel_cookie_check(p))
		return TCX_NEXT; /* the kernel's own answer of before: the request is ruled as it passes */
	bad_count(front->now);
	if (!bad_too_many(front->now) && ran_out(front, &stream->with))
		return too_late(skb, front);
	return count_drop(front, FIEF_ACK_BAD);
}
