/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Narrow: how many requests a server gets at once, where the policy leaves that to Fief.
 *
 * Problem: what waits inside a server is out of any order; but a server that itself waits for others does more with more.
 * How: it begins without a limit. Measurements of some 64 ms tell how many requests are answered, and how long they took
 * from their arrival on. From time to time another number is tried for one measurement, in turn fewer and more. Fewer is
 * kept if as many are answered, and, where the server could have had more all the time, as soon: then they only waited
 * inside. More is kept if more are answered, or sooner. After a trial that failed the next one comes later, and its step is
 * smaller.
 * Limits: a server is the same for all its requests here. While fewer than 2 a second are answered, nothing is tried.
 */
#pragma once

#include "places.bpf.h"

#define MEASURE_NS	64000000
#define MEASURE_LONG_NS 1000000000
#define MEASURE_MOST_NS 8000000000ull /* of a slow server */
#define MEASURE_ANSWERS 64	      /* end it before it is long */
#define MEASURE_LEAST	16	      /* say anything */
#define HOLDS_MOST	16
#define FINE_MOST	3

enum narrow_trial { TRIAL_NONE, TRIAL_MORE, TRIAL_FEWER };

/* What one measurement said. */
struct narrow_seen {
	__u64 rate;
	__u64 mean;
	bool limited; /* whoever came had to wait */
};

/* One measurement of cheap requests says little of the others: the largest rate of late grows by an eighth at most, and is forgotten. */
static __always_inline void best_note(struct fief_queue_measured *m, __u64 rate)
{
	__u64 most = m->best ? m->best + m->best / 8 : rate;

	m->best -= m->best >> 6;
	if (m->best < rate)
		m->best = rate < most ? rate : most;
}

/* a of b, in percent, is at least `percent`. */
static __always_inline bool is_part(__u64 a, __u64 b, __u64 percent)
{
	return a * 100 >= b * percent;
}

static __always_inline bool fewer_is_as_good(const struct fief_queue_measured *m, const struct narrow_seen *seen)
{
	if (!is_part(seen->rate, m->rate, 97) || !is_part(seen->rate, m->best, 94))
		return false;
	return m->limited || is_part(m->mean * 105 / 100, seen->mean, 100);
}

static __always_inline bool more_is_better(const struct fief_queue_measured *m, const struct narrow_seen *seen)
{
	return is_part(seen->rate, m->rate, 104) ||
	       (is_part(seen->rate, m->rate, 97) && is_part(m->mean * 93 / 100, seen->mean, 100));
}

/* The number that is tried next; that in force: nothing is. */
static __always_inline __u32 narrow_next(struct fief_queue_measured *m, __u32 places)
{
	__u32 base = m->most < places ? m->most : places, fine = m->fine & FINE_MOST, next;

	m->held = 0;
	if (m->less || !m->limited) {
		next = base < 2 ? places : base - ((base >> (1 + fine)) ?: 1);
		m->trial = next == places ? TRIAL_NONE : TRIAL_FEWER;
	} else {
		next = places + ((places >> fine) ?: 1);
		if (next > FIEF_QUEUE_PLACES)
			next = FIEF_QUEUE_PLACES;
		m->trial = next == places ? TRIAL_NONE : TRIAL_MORE;
	}
	if (m->trial == TRIAL_NONE)
		m->less = !m->less;
	return next;
}

/* The trial has failed, or nobody knows. The number that is in force again. */
static __always_inline __u32 narrow_back(struct fief_queue_measured *m)
{
	m->less = m->trial != TRIAL_FEWER;
	m->trial = TRIAL_NONE;
	m->fine += m->fine < FINE_MOST;
	m->holds = m->holds < HOLDS_MOST / 2 ? m->holds * 2 : HOLDS_MOST;
	return m->settled;
}

/* The trial has ended. The number that is in force from now on. */
static __always_inline __u32 narrow_judge(struct fief_queue_measured *m, const struct narrow_seen *seen, __u32 places)
{
	bool fewer = m->trial == TRIAL_FEWER;

	if (fewer ? fewer_is_as_good(m, seen) : more_is_better(m, seen)) {
		m->trial = TRIAL_NONE;
		m->rate = seen->rate;
		m->mean = seen->mean;
		m->limited = seen->limited;
		m->holds = 1; /* on in this direction, soon */
		m->fine -= !!m->fine;
		m->settled = places;
		return places;
	}
	return narrow_back(m);
}

/* A measurement with the settled number has ended. */
static __always_inline void narrow_note(struct fief_queue_measured *m, const struct narrow_seen *seen)
{
	bool first = !m->held || !m->rate;

	m->rate = first ? seen->rate : (3 * m->rate + seen->rate) / 4;
	m->mean = first ? seen->mean : (3 * m->mean + seen->mean) / 4;
	m->limited = seen->limited;
	m->held++;
}

enum narrow_measure { MEASURE_GOES_ON, MEASURE_SAYS_NOTHING, MEASURE_SAYS };

/* Whether a measurement of this age is too short, for whatever it is. */
static __always_inline bool measure_goes_on(const struct fief_queue_measured *m, __u64 age, __u64 answered)
{
	if (m->drain)
		return answered < m->drain && age < MEASURE_MOST_NS;
	return age < MEASURE_NS || (answered < MEASURE_ANSWERS && age < MEASURE_LONG_NS) ||
	       (answered < MEASURE_LEAST && age < MEASURE_MOST_NS);
}

/* What the measurement up to now says. */
static __always_inline enum narrow_measure measure_end(struct fief_queue_measured *m, __u64 now,
						       struct narrow_seen *seen)
{
	__u64 from = *(volatile __u64 *)&m->from_ns, age = now - from;
	__u64 answered = *(volatile __u64 *)&m->answered, sojourn;

	if (from && (__s64)age < 0)
		return MEASURE_GOES_ON; /* another CPU, which read its clock later, has begun it */
	if (!from || age > 2 * MEASURE_MOST_NS)
		age = MEASURE_MOST_NS, answered = 0; /* nobody was there */
	else if (measure_goes_on(m, age, answered))
		return MEASURE_GOES_ON;
	if (__sync_val_compare_and_swap(&m->from_ns, from, now) != from)
		return MEASURE_GOES_ON;
	__sync_lock_test_and_set(&m->answered, 0);
	sojourn = __sync_lock_test_and_set(&m->sojourn_ns, 0);
	seen->limited = !m->slack;
	m->slack = 0;
	if (m->drain) {
		m->drain = 0;
		return MEASURE_GOES_ON;
	}
	if (answered < MEASURE_LEAST)
		return MEASURE_SAYS_NOTHING;
	seen->rate = answered * FIEF_RATE_NS / age;
	seen->mean = sojourn / answered;
	return MEASURE_SAYS;
}

/* The server has answered one more, which came so long ago. */
static __noinline int answered_count(struct fief_queue *q, __u64 sojourn_ns, __u64 now)
{
	struct fief_queue_measured *m = &q->measured;
	__u32 places = q->places, says;
	struct narrow_seen seen;

	__sync_fetch_and_add(&m->answered, 1);
	__sync_fetch_and_add(&m->sojourn_ns, sojourn_ns);
	says = measure_end(m, now, &seen);
	if (says == MEASURE_GOES_ON || (says == MEASURE_SAYS_NOTHING && !m->trial))
		return 0;
	if (says == MEASURE_SAYS)
		best_note(m, seen.rate);
	if (says == MEASURE_SAYS_NOTHING) {
		places = narrow_back(m);
	} else if (m->trial) {
		places = narrow_judge(m, &seen, places);
	} else {
		narrow_note(m, &seen);
		if (m->held >= m->holds)
			places = narrow_next(m, places);
	}
	if (places != q->places)
		m->drain = q->busy + 1;
	m->most = 0;
	q->places = places;
	return 0;
}
