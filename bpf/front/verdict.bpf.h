/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Verdict: counts verdicts with their reasons, and reports refusals.
 *
 * Problem: under a flood each refusal must cost little, and a notice for each would flood its reader too.
 * How: counters of each CPU by container, rule, listener and reason. At most one notice goes out in FIEF_NOTICE_NS for each
 * bucket, and for each reason of a listener; it has the number of refusals since the last.
 * Limits: those of a listener's reasons are counted by CPU: each is reported, but perhaps in a later notice, by the CPU that
 * saw it.
 */
#pragma once

#include "context.bpf.h"
#include "counted.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/last_notices.bpf.h"
#include "maps/loads.bpf.h"
#include "maps/notices.bpf.h"
#include "maps/refusals.bpf.h"

/* Reasons for which something was not let through, as bits. */
#define REASON(reason)	(1ull << (reason))
#define UNREAD_REFUSALS ((REASON(FIEF_UNREADS) - 1) << FIEF_REFUSED_MALFORMED)
#define REFUSALS                                                                                                       \
	(REASON(FIEF_SYN_RATE) | REASON(FIEF_SYN_UNPROVEN) | REASON(FIEF_SYN_ISOLATED) | REASON(FIEF_SYN_PENALTY) |    \
	 REASON(FIEF_SYN_QUEUE) | REASON(FIEF_ACK_BAD) | REASON(FIEF_ACK_LIMIT) | REASON(FIEF_SHAPE) |                 \
	 REASON(FIEF_REQUEST_REFUSED) | REASON(FIEF_REQUEST_RATE) | REASON(FIEF_REQUEST_CPU) |                         \
	 REASON(FIEF_REQUEST_REPLACED) | UNREAD_REFUSALS | REASON(FIEF_REFUSED_QUEUE_FULL) |                           \
	 REASON(FIEF_REFUSED_QUEUE_WAIT) | REASON(FIEF_REFUSED_QUEUE_DISPLACED) | REASON(FIEF_BANNED) |                \
	 REASON(FIEF_SYN_ABSENT))

/* Steps of a request that waits. Notices tell them; the queue's class counts them. */
#define STEPS (REASON(FIEF_QUEUE_WAITS) | REASON(FIEF_QUEUE_RELEASED))

_Static_assert(FIEF_REFUSED_MALFORMED == FIEF_PASSED_MALFORMED + FIEF_UNREADS, "one reason for each kind");
_Static_assert(FIEF_REFUSED_QUEUE_FULL == FIEF_REFUSED_MALFORMED + FIEF_UNREADS && FIEF_REASONS <= FIEF_REASON_ROOM,
	       "reasons are bits, and have room");

/* How a kind of what cannot be read is counted. */
static __always_inline enum fief_reason unread_reason(enum fief_unread unread, bool refused)
{
	return (refused ? FIEF_REFUSED_MALFORMED : FIEF_PASSED_MALFORMED) + unread;
}

static __always_inline bool unread_refused(const struct fief_guard *guard, enum fief_unread unread)
{
	return guard->unread_refused >> unread & 1;
}

/* Whom a connection belongs to as long as no request says otherwise. */
static __always_inline struct fief_ref client_container(const struct front_context *front)
{
	return front->container;
}

/* The turn to send a notice is taken by one CPU. */
static __always_inline bool notice_due(__u64 *last, __u64 now)
{
	__u64 seen = *(volatile __u64 *)last;

	return (!seen || now - seen >= FIEF_NOTICE_NS) && __sync_val_compare_and_swap(last, seen, now) == seen;
}

static __always_inline void notice_fill(struct fief_notice *notice, const struct packet *p,
					const struct fief_verdict_key *verdict, __u64 now, __u32 count)
{
	notice->time_ns = now;
	__builtin_memcpy(notice->source, p->source, 16);
	__builtin_memcpy(notice->destination, p->destination, 16);
	notice->source_port = p->source_port;
	notice->destination_port = p->destination_port;
	notice->verdict = *verdict;
	notice->count = count;
	notice->interface = p->interface;
}

static __always_inline void notice_send(const struct packet *p, const struct fief_verdict_key *verdict, __u64 now,
					__u32 count)
{
	__u32 listener = verdict->listener;
	struct fief_notice *last = bpf_map_lookup_elem(&last_notices, &listener);
	struct fief_told *told;
	__u64 number;

	if (last && !verdict->monitored && !(STEPS >> verdict->reason & 1))
		notice_fill(last, p, verdict, now, count);
	told = notice_begin(&number);
	if (!told)
		return;
	notice_fill(&told->notice, p, verdict, now, count);
	notice_end(told, number);
}

/* A refusal for which the listener, or else the bucket that refused, sends the notices. */
static __always_inline void refusal_tell(const struct packet *p, const struct fief_verdict_key *key,
					 struct fief_bucket *bucket, __u64 now)
{
	__u32 listener = key->listener, reason = key->reason, count;
	struct fief_refusals *refused = bpf_map_lookup_elem(&refusals, &listener);
	struct fief_load *load = bpf_map_lookup_elem(&loads, &listener);

	if (!refused || !load || reason >= FIEF_REASONS)
		return;
	if (!key->monitored && !(STEPS >> reason & 1)) {
		refused->refused++;
		refused->queue_full += reason == FIEF_SYN_QUEUE;
	}
	if (bucket) {
		__sync_fetch_and_add(&bucket->refused, 1);
		if (notice_due(&bucket->notice_ns, now))
			notice_send(p, key, now, __sync_lock_test_and_set(&bucket->refused, 0));
		return;
	}
	refused->untold[reason]++;
	if (!notice_due(&load->notice_ns[reason], now))
		return;
	count = refused->untold[reason];
	refused->untold[reason] = 0;
	notice_send(p, key, now, count);
}

/* A function of its own to the verifier, which then follows it once and not from each place that it is called from. */
__noinline int verdict_tell(const struct packet *p __arg_nonnull, const struct fief_verdict_key *key __arg_nonnull,
			    struct fief_bucket *bucket, __u64 now)
{
	if (!(STEPS >> key->reason & 1))
		verdict_add(key, 1);
	if ((REFUSALS | STEPS) >> key->reason & 1)
		refusal_tell(p, key, bucket, now);
	return 0;
}

/* Counts a verdict, and tells of it if it is a refusal. `bucket`: the one that refused, or NULL. */
static __noinline int verdict_note(struct front_context *front, struct fief_ref container, __u32 rule, __u32 verdict,
				   struct fief_bucket *bucket)
{
	struct fief_verdict_key key = {
	    .container = container,
	    .rule = rule,
	    .listener = front->listener.index,
	    .reason = verdict,
	    .monitored = verdict >> 8,
	};

	return verdict_tell(&front->packet, &key, bucket, front->now);
}

/* `monitored`: it would have been, but nothing was done. */
static __always_inline void verdict_count(struct front_context *front, struct fief_ref container, __u32 rule,
					  enum fief_reason reason, bool monitored)
{
	verdict_note(front, container, rule, reason | monitored << 8, NULL);
}

/* A SYN that the core will not see, in the usage of whom it belongs to. */
static __always_inline void syn_count(struct front_context *front, bool dropped)
{
	struct fief_ref to = client_container(front);
	struct fief_container *c = bpf_map_lookup_elem(&containers, &to.id);

	if (!c || c->generation != to.generation)
		return;
	__sync_fetch_and_add(&c->usage.syns_seen, 1);
	if (dropped)
		__sync_fetch_and_add(&c->usage.syns_dropped, 1);
}
