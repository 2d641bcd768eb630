/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Newcomers: which SYNs of unproven sources get an answer out of the budget (`unproven`).
 *
 *   level of the bucket           SYNs that are still answered
 *   empty                         of isolated prefixes that are served last (`into`): the rest of the budget
 *   to half of the burst          all
 *   to the burst                  of a prefix: the longer, the fewer answers it got this second
 *   to two bursts                 repeated SYNs: the longer, the more repetitions
 *   beyond                        all, while the CPU has time left (idle.bpf.h), unless a rate is used up by them
 *
 * Problem: a budget that drops blindly drops new clients as often as the flood: at 70,000 spoofed SYNs a second and a budget of
 * 5,000 a client needs 14 SYNs, which takes it minutes.
 * How: one bucket keeps the rate; the level to which a SYN may fill it is its priority. A flood keeps the bucket full up to its
 * own mark, and SYNs that may fill it further find room. Answers are counted by hash of the prefix's /24 (IPv6 /64) and /16
 * (/48), once the bucket is half full.
 * Limits: prefixes share counters by chance. A flood of invented addresses, each sent as often as a client's, differs from
 * clients by its patience alone.
 */
#pragma once

#include "flow/aggregate.bpf.h"
#include "bucket.bpf.h"
#include "guard.bpf.h"
#include "idle.bpf.h"
#include "resent.bpf.h"

#define GIVEN_PLACES 8192
#define GIVEN_SECOND 30 /* of nanoseconds, as a shift */
#define GIVEN_STEPS  8	/* a prefix that was given 255 may fill no more than half of the burst */
#define GIVEN_MUCH   5	/* from 31 on, sending again does not help */
#define GIVEN_WIDER  4	/* a /16, and a /48, may be given 16 times as much as one prefix of it */

/* SYNs of some prefix that were answered in a second: the second << 32, and how many. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GIVEN_PLACES);
	__type(key, __u32);
	__type(value, __u64);
} given SEC(".maps");

/* Where the narrow and the wide prefix of a source are counted. */
struct given_places {
	__u64 *narrow;
	__u64 *wide;
};

static __always_inline __u64 *given_place(const struct fief_secret *secret, const __u64 *words, __u32 length)
{
	__u64 hash = hash_mix(address_hash(secret, words) ^ secret->pattern[0] ^ length);
	__u32 at = hash & (GIVEN_PLACES - 1);

	return bpf_map_lookup_elem(&given, &at);
}

static __noinline int given_find(const struct packet *p, struct given_places *places)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	__u64 words[2];

	places->narrow = places->wide = NULL;
	if (!secret)
		return 0;
	__builtin_memcpy(words, p->source, 16);
	words[1] = p->ipv6 ? 0 : words[1] & bpf_cpu_to_be64(~0xffull);
	places->narrow = given_place(secret, words, 0);
	if (p->ipv6)
		words[0] = first_bits(words[0], IPV6_48);
	else
		words[1] &= bpf_cpu_to_be64(~0xffffull);
	places->wide = given_place(secret, words, 1);
	return 0;
}

static __always_inline __u32 given_now(const __u64 *place, __u64 now)
{
	__u64 count = place ? *(volatile __u64 *)place : 0;

	return count >> 32 == now >> GIVEN_SECOND ? count : 0;
}

static __always_inline void given_count(__u64 *place, __u64 now)
{
	if (place)
		*(volatile __u64 *)place = now >> GIVEN_SECOND << 32 | (given_now(place, now) + 1);
}

/* One of its prefixes is given an answer. A function of its own to the verifier, which follows it once and not in each state of the bucket. */
__noinline int given_note(const struct packet *p __arg_nonnull, __u64 now)
{
	struct given_places places;

	given_find(p, &places);
	given_count(places.narrow, now);
	given_count(places.wide, now);
	return 0;
}

/* How much its prefixes were given this second: the logarithm, up to GIVEN_STEPS. */
__noinline int given_steps(const struct packet *p __arg_nonnull, __u64 now)
{
	struct given_places places;
	__u32 narrow, wide, steps;

	given_find(p, &places);
	narrow = given_now(places.narrow, now);
	wide = given_now(places.wide, now) >> GIVEN_WIDER;
	steps = highest_bit((narrow > wide ? narrow : wide) + 1ull);
	return steps < GIVEN_STEPS ? steps : GIVEN_STEPS;
}

/* Whether the answer costs nothing but time of this CPU. */
static __always_inline bool answered_here(struct front_context *front)
{
	return !(front->guard->flags & FIEF_GUARD_FORWARD) && admit_in_force(front);
}

/* The bucket is half full, or more. */
static __noinline bool newcomer_take_late(struct front_context *front, __u64 *arrival, __u64 lead, bool rated)
{
	__u64 interval = front->guard->unproven_interval_ns, burst = front->guard->unproven_tolerance_ns, mark;
	const struct packet *p = &front->packet;
	__u32 times;

	if (lead <= burst) {
		mark = burst - burst / 2 / GIVEN_STEPS * (__u32)given_steps(p, front->now);
		if (cell_take(arrival, interval, mark, front->now)) {
			given_note(p, front->now);
			return true;
		}
	}
	if (!rated && answered_here(front) && cpu_spare(front->now))
		return true;
	times = resent(p, front->now, RESENT_SYN);
	if (!times || (__u32)given_steps(p, front->now) >= GIVEN_MUCH)
		return false;
	mark = burst + (burst + interval) / RESENT_MOST * times;
	if (!cell_take(arrival, interval, mark, front->now))
		return false;
	given_note(p, front->now);
	return true;
}

/* An arrival further ahead than this budget allows comes from the budget of an earlier policy: it is cut to this one's. */
static __always_inline void budget_bound(__u64 *arrival, __u64 most, __u64 now)
{
	__u64 seen = *(volatile __u64 *)arrival;

	if (seen > now + most)
		__sync_val_compare_and_swap(arrival, seen, now + most);
}

/* Whether a SYN of an unproven source is answered. `last`: only from what nobody else wanted. `rated`: it uses up a rate of a rule. */
static __always_inline bool newcomer_take(struct front_context *front, bool last, bool rated)
{
	const struct fief_guard *guard = front->guard;
	__u32 listener = front->listener.index;
	struct fief_load *load = bpf_map_lookup_elem(&loads, &listener);
	__u64 *arrival, seen, lead;

	if (!load)
		return true;
	arrival = &load->unproven_arrival_ns;
	budget_bound(arrival, 2 * guard->unproven_tolerance_ns + guard->unproven_interval_ns, front->now);
	if (last)
		return cell_take(arrival, guard->unproven_interval_ns, 0, front->now);
	seen = *(volatile __u64 *)arrival;
	lead = seen > front->now ? seen - front->now : 0;
	if (lead <= guard->unproven_tolerance_ns / 2 &&
	    cell_take(arrival, guard->unproven_interval_ns, guard->unproven_tolerance_ns / 2, front->now))
		return true;
	return newcomer_take_late(front, arrival, lead, rated);
}
