/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Latency: holds what the policy promises a class, as "99% in 20ms".
 *
 * Problem: within a server that works on many requests at once, those of worse classes take the CPU from the better ones.
 * How: the answers of such a class are counted by eighths of a second, and how many of them began too late after the request
 * had come. When half of what the policy allows was late within the last second, the classes below get half of the places
 * that they had, at least one; while it was a quarter at most, they get some more each second.
 * Limits: the highest class that is promised something says which are below; the others are counted only. An answer after the place
 * of its request has run out is not counted: whoever owes bytes of a request, or takes none of the answer, would make all others
 * wait. Where the classes below have one place, no more can be done: it is counted, and told.
 */
#pragma once

#include "places.bpf.h"

#define EIGHTH_SHIFT 27 /* 134 ms */
#define LEAST_SEEN   8	/* answers that say anything */
#define LEAST_LATE   2	/* of them, before others give way */

enum latency_says { LATENCY_NOTHING, LATENCY_EASY, LATENCY_HELD, LATENCY_NEAR };

/*
 * Of the last second, up to an eighth that begins, as the last of some that have begun since the one before: enum latency_says.
 * Global, so that the verifier walks it once.
 */
__noinline int latency_judge(struct fief_queue_class *of __arg_nonnull, __u64 eighth, __u64 begun)
{
	__u64 answered = 0, late = 0, allowed;
	__u32 i;

	for (i = loop_from(0); i < FIEF_EIGHTHS && i + 1 < begun && can_loop; i++) {
		__u64 at = eighth - 1 - i; /* nothing was answered in these */

		barrier_var(at);
		at &= FIEF_EIGHTHS - 1;
		of->answered[at] = 0;
		of->late[at] = 0;
	}
	for (i = loop_from(0); i < FIEF_EIGHTHS && can_loop; i++) {
		__u32 at = i;

		barrier_var(at); /* keeps its mask */
		at &= FIEF_EIGHTHS - 1;
		answered += of->answered[at];
		late += of->late[at];
	}
	of->answered[eighth & (FIEF_EIGHTHS - 1)] = 0;
	of->late[eighth & (FIEF_EIGHTHS - 1)] = 0;
	if (answered < LEAST_SEEN)
		return LATENCY_NOTHING;
	allowed = answered * of->late_ppm;
	if (late * 1000000 > allowed)
		of->eighths_missed++;
	else
		of->eighths_held++;
	if (late < LEAST_LATE)
		return late ? LATENCY_HELD : LATENCY_EASY;
	late *= 1000000;
	if (late * 2 > allowed)
		return LATENCY_NEAR;
	return late * 4 > allowed ? LATENCY_HELD : LATENCY_EASY;
}

/* The classes below got too much: what was counted until now says nothing of what they get from now on. */
static __always_inline void below_narrow(struct fief_queue *q)
{
	__u32 had = q->busy_below < q->below ? q->busy_below : q->below;

	q->below = had / 2 ?: 1;
	q->below_rests = 2 * FIEF_EIGHTHS;
}

static __always_inline void below_widen(struct fief_queue *q)
{
	if (q->below_rests) {
		q->below_rests--;
		return;
	}
	q->below += q->below / 8 ?: 1;
	if (q->below > FIEF_QUEUE_PLACES)
		q->below = FIEF_QUEUE_PLACES;
	q->below_rests = FIEF_EIGHTHS;
}

/* After so long a time without answers the number of places below is found out anew. */
#define FORGETS_EIGHTHS (60 * FIEF_EIGHTHS)

/* `begun` eighths of a second are over. */
static __noinline int latency_hold(struct fief_queue *q, __u64 eighth, __u64 begun)
{
	int says, worst = LATENCY_NOTHING;
	__u32 class;

	for (class = loop_from(0); class < FIEF_QUEUE_CLASSES && can_loop; class ++) {
		struct fief_queue_class *of;
		__u32 at = class;

		barrier_var(at); /* keeps its mask */
		of = queue_class(q, at);
		if (!of->latency_ns)
			continue;
		says = latency_judge(of, eighth, begun);
		if (worst < says && !class_is_below(q, of))
			worst = says;
	}
	if (begun > FORGETS_EIGHTHS)
		q->below = FIEF_QUEUE_PLACES, q->below_rests = 0;
	if (worst >= LATENCY_NEAR && !q->below_rests)
		below_narrow(q);
	else if (worst >= LATENCY_HELD)
		q->below_rests -= !!q->below_rests;
	else
		below_widen(q);
	return 0;
}

/* The first byte of an answer leaves, so long after its request came. */
static __noinline int latency_count(struct fief_queue *q, __u32 class, __u64 ns, __u64 now)
{
	struct fief_queue_class *of = queue_class(q, class);
	__u64 before = *(volatile __u64 *)&q->eighth, eighth = now >> EIGHTH_SHIFT;

	if ((__s64)(eighth - before) > 0 && __sync_val_compare_and_swap(&q->eighth, before, eighth) == before)
		latency_hold(q, eighth, eighth - before);
	if (!of->latency_ns)
		return 0;
	__sync_fetch_and_add(&of->answered[eighth & (FIEF_EIGHTHS - 1)], 1);
	if (ns > of->latency_ns)
		__sync_fetch_and_add(&of->late[eighth & (FIEF_EIGHTHS - 1)], 1);
	return 0;
}
