/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stands: how long one of a class may wait, by what its line does.
 *
 * Problem: a line that grows holds requests up and helps nobody: the server has enough to do with the last few, and as many are refused,
 * only later. A line of clients that ask again once they are answered is as long, and no overload: all of it is served.
 * How: a line grows at a look if it has never been as long since it last rested, by a quarter more than then, and its first has waited for
 * longer than the short wait; or if somebody had to be refused. After some such looks, without a rest between them, it stands: the wait is
 * short, and the server works for clients that are still there. It ends when nobody had to be refused. Those that were may come
 * again, and be refused again though all could be served: so from time to time the line is left to itself, and has to grow for
 * longer; the next time comes later. While it stands, as many wait as the server took up in such a time at the last looks; a further one is
 * refused when it comes, which costs least.
 * Limits: a line is looked at when another one comes to it. One that ceases to be overload by clients that ask again stands for 16 s, and for
 * 64 s where it was overload before.
 */
#pragma once

#include "classes.bpf.h"

#define STANDS_NS    250000000		     /* from one look to the next */
#define STANDS_FROM  9			     /* so many have to wait: the server must not run dry */
#define STANDS_CALM  (FIEF_QUEUE_STANDS / 2) /* where a line begins */
#define STANDS_RESTS 4	/* looks in a row at which it was no longer than before: it has come to rest */
#define STANDS_LEFT  64 /* looks until it is left to itself, and twice as many the next time */
#define STANDS_TRIES 2

/* So long one of it may wait now. Without branches, as class_order(). */
static __always_inline __u64 class_wait(const struct fief_queue_class *of)
{
	__u64 stands = FIEF_QUEUE_STANDS - 1ull - of->stands, few = of->list.linked - (__u64)STANDS_FROM,
	      fixed = of->short_ns - 1;

	stands >>= 63;
	barrier_var(stands);
	few >>= 63;
	barrier_var(few);
	fixed >>= 63;
	barrier_var(fixed);
	stands &= ~(few | fixed);
	return of->wait_ns ^ ((of->wait_ns ^ of->short_ns) & -stands);
}

/*
 * 1: it stands, and as many wait as the server takes up within the short wait: one more would wait for nothing. Without branches, as
 * class_order().
 */
static __always_inline __u64 class_has_enough(const struct fief_queue_class *of, __u64 now)
{
	__u64 stands = FIEF_QUEUE_STANDS - 1ull - of->stands, more = of->enough - 1ull - of->waiting;
	__u64 fixed = of->short_ns - 1, late = of->late_ns - now;

	stands >>= 63;
	barrier_var(stands);
	more >>= 63;
	barrier_var(more);
	fixed >>= 63;
	barrier_var(fixed);
	late >>= 63; /* those that wait are too late themselves, and make room */
	barrier_var(late);
	return stands & more & ~(fixed | late);
}

/*
 * How many the server takes up within the short wait, `ns` after the last look, at which so many fewer had been refused. One at which it
 * stood still says little.
 */
static __always_inline void class_measure(struct fief_queue_class *of, __u32 refused, __u64 ns)
{
	__u32 released = of->released, begun = released - of->begun, least = of->enough - of->enough / 4;
	__u64 enough = begun * of->short_ns / (ns ?: 1), would = ((__u64)begun + refused) * of->short_ns / (ns ?: 1);

	enough -= enough / 8;
	if (enough < least)
		enough = least;
	if (enough < STANDS_FROM)
		enough = STANDS_FROM;
	of->enough = enough;
	of->begun = released;
	would *= of->wait_ns / (of->short_ns ?: 1);
	of->would = would < ~0u ? would : ~0u;
}

/* The line is at rest, at its length of now. */
static __always_inline void class_rests(struct fief_queue_class *of)
{
	of->tries &= -(of->stands != STANDS_CALM);
	of->stands = STANDS_CALM;
	of->looks = 0;
	of->rested = of->longest = of->waiting;
}

/* Whether it is longer than ever since, by more than a few, and holds its first up. */
static __always_inline bool class_grows(struct fief_queue_class *of, __u64 now)
{
	__u64 since = of->late_ns - class_wait(of);

	if (of->waiting <= of->longest)
		return false;
	of->longest = of->waiting;
	of->looks = 0;
	return of->waiting > of->rested + of->rested / 4 + 1 && (__s64)(now - since - of->short_ns) > 0;
}

/* One more comes, at `now`, as its CPU knows it: whether its line stands is looked at. */
static __always_inline void class_watch(struct fief_queue_class *of, __u64 now)
{
	__u32 refused = of->refused_wait + of->refused_full;
	bool turned_away = refused != of->refused;

	if (!of->short_ns || (__s64)(now - of->looked_ns) < STANDS_NS)
		return;
	if (!of->looked_ns)
		class_rests(of);
	class_measure(of, refused - of->refused, now - of->looked_ns);
	of->refused = refused;
	of->looked_ns = now;
	of->looks++;
	if (of->stands == FIEF_QUEUE_STANDS) {
		if (!turned_away) {
			class_rests(of);
		} else if (of->looks >= STANDS_LEFT << of->tries) {
			class_rests(of);
			of->stands = 0;
			of->tries += of->tries < STANDS_TRIES;
		}
	} else if (of->waiting >= STANDS_FROM && (class_grows(of, now) || turned_away)) {
		of->looks = 0;
		of->stands++;
	} else if (of->waiting < of->rested || of->looks >= STANDS_RESTS) {
		class_rests(of);
	}
}

/* Nobody of it waits any more. */
static __always_inline void class_is_empty(struct fief_queue_class *of)
{
	of->passed = 0;
	of->stands = STANDS_CALM;
	class_rests(of);
}

/* Those that wait; of a line that is held to a short wait, as many as would by the whole one: so many come in that time. */
static __always_inline __u64 class_would_wait(const struct fief_queue_class *of, __u64 now)
{
	__u64 waits = *(const volatile __u32 *)&of->waiting;

	if (of->stands == FIEF_QUEUE_STANDS && of->short_ns && (__s64)(now - of->looked_ns) < 4 * STANDS_NS)
		waits = of->would > waits ? of->would : waits;
	return waits;
}
