/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Resent: how often a SYN that was not answered, or a segment whose cookie was not checked, was sent before.
 *
 *      31            16 15        14 13              0
 *     +----------------+------------+-----------------+
 *     |  hash of it    |  times sent|  when last, in  |   a place; 0: free
 *     |                |  again     |  RESENT_TICKs   |
 *     +----------------+------------+-----------------+
 *
 * Problem: one SYN of a spoofed flood and one of a new client look alike.
 * How: a client sends the same SYN again, with the same ports and number. A sender that invents addresses has no reason to, and
 * pays as many SYNs for it. A keyed hash of each dropped SYN stands in a table of half cache lines; a new one takes the place
 * of the oldest of its line. A SYN counts as sent again after the shortest time in which a client does so: duplicates on the
 * way do not.
 * Limits: at more than 400,000 of them a second most are forgotten before a second has passed, and new clients are answered by
 * chance.
 */
#pragma once

#include "context.bpf.h"
#include "hash.bpf.h"
#include "maps/secrets.bpf.h"

#define RESENT_SETS    65536
#define RESENT_WAYS    8
#define RESENT_MOST    3  /* as counted */
#define RESENT_TICK    24 /* of nanoseconds, as a shift: 17 ms; the field turns over in 275 s */
#define RESENT_TIME    0x3fffu
#define RESENT_AGE     (8000000000ull >> RESENT_TICK)
#define RESENT_SYN     (400000000u >> RESENT_TICK) /* ticks after which it was sent again: of 1 s */
#define RESENT_SEGMENT (150000000u >> RESENT_TICK) /* of 200 ms */

struct resent_set {
	__u32 of[RESENT_WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* so that it begins with a cache line */
	__uint(max_entries, RESENT_SETS);
	__type(key, __u32);
	__type(value, struct resent_set);
} resent_sets SEC(".maps");

static __always_inline __u32 resent_age(__u32 place, __u32 tick)
{
	return place ? (tick - place) & RESENT_TIME : ~0u;
}

/* Of a segment's addresses and ports, and of numbers, keyed. */
static __always_inline __u64 numbers_hash(const struct fief_secret *secret, const struct packet *p, __u32 seq,
					  __u32 ack)
{
	__u64 words[2], hash;

	__builtin_memcpy(words, p->source, 16);
	hash = address_hash(secret, words) ^ ((__u64)seq << 32 | (__u32)p->source_port << 16 | p->destination_port);
	return hash_mix(hash * HASH_GOLDEN ^ secret->pattern[1] ^ ack);
}

/* How often the SYN or segment came before, `least` ticks apart, up to RESENT_MOST; it is remembered. */
__noinline int resent(const struct packet *p __arg_nonnull, __u64 now, __u32 least)
{
	__u32 zero = 0, at, tick, tag, i, age, oldest = 0, oldest_age = 0, times;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	struct resent_set *set;
	__u64 hash;

	if (!secret)
		return 0;
	hash = numbers_hash(secret, p, p->seq, p->ack);
	at = hash & (RESENT_SETS - 1);
	tag = (hash >> 48) << 16;
	tick = now >> RESENT_TICK;
	set = bpf_map_lookup_elem(&resent_sets, &at);
	if (!set)
		return 0;
	for (i = 0; i < RESENT_WAYS; i++) {
		__u32 place = set->of[i];

		age = resent_age(place, tick);
		if (!((place ^ tag) >> 16) && age <= RESENT_AGE)
			goto known;
		if (age > oldest_age) {
			oldest_age = age;
			oldest = i;
		}
	}
	set->of[oldest & (RESENT_WAYS - 1)] = tag | (tick & RESENT_TIME);
	return 0;
known:
	times = set->of[i & (RESENT_WAYS - 1)] >> 14 & RESENT_MOST;
	if (age < least)
		return times;
	times += times < RESENT_MOST;
	set->of[i & (RESENT_WAYS - 1)] = tag | times << 14 | (tick & RESENT_TIME);
	return times;
}
