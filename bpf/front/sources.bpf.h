/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sources: which addresses have proved that they are there.
 *
 * Problem: anybody can forge the source of a SYN, so a punishment may hit the forged address.
 * How: an address that returned a cookie, or the number of an answer of the kernel's, receives what is sent there: it is proven,
 * has its own bucket, and is punished for its own requests only. An IPv6 source is its /64. Each family has a table in sets. A new
 * source takes a free place of its set, or that of the oldest source of the network with most places there (flow/aggregate.bpf.h).
 * Limits: a source is forgotten when, since its last packet, as many others have come as a set holds.
 */
#pragma once

#include "flow/aggregate.bpf.h"
#include "bits.bpf.h"
#include "context.bpf.h"
#include "hash.bpf.h"
#include "maps/secrets.bpf.h"
#include "maps/sources.bpf.h"

#define PROVEN_FRESH_NS 1000000000ull /* no write for each cookie of a busy client */

/* Where a source is, if it is anywhere. */
struct source_place {
	__u64 words[2]; /* its address; an IPv6 /64 */
	__u32 set;
	__u16 tag;
	__u16 ipv6;
};

static __always_inline bool source_place(const struct packet *p, struct source_place *at)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	__u64 hash, wide[2];

	if (!secret)
		return false;
	__builtin_memcpy(at->words, p->source, 16);
	at->ipv6 = p->ipv6;
	if (p->ipv6)
		at->words[1] = 0;
	wide[0] = p->ipv6 ? first_bits(at->words[0], IPV6_48) : at->words[0];
	wide[1] = at->words[1];
	hash = address_hash(secret, wide);
	at->set = hash >> 32 & (FIEF_SOURCE_SETS - 1);
	if (p->ipv6) {
		at->set += FIEF_SOURCE_SETS;
		hash = hash_mix(hash ^ at->words[0]);
	}
	at->tag = way_tag(hash);
	return true;
}

static __always_inline struct fief_source *source_at(__u32 set, __u32 way)
{
	__u32 at = set * FIEF_WAYS + way;

	return bpf_map_lookup_elem(&sources, &at);
}

static __always_inline __u64 *source_words(struct fief_source *source)
{
	return (__u64 *)source->address;
}

/* Of the places with its tag, the one that is the source's. */
static __noinline struct fief_source *source_among(const struct source_place *at, __u64 ways)
{
	struct fief_source *source;

	while (ways && can_loop) {
		source = source_at(at->set, lowest_bit(ways));
		if (source && source_words(source)[0] == at->words[0] && source_words(source)[1] == at->words[1])
			return source;
		ways &= ways - 1;
	}
	return NULL;
}

static __always_inline struct fief_source *source_find_at(const struct source_place *at)
{
	struct way_tags *tags = bpf_map_lookup_elem(&source_tags, &at->set);
	__u32 ways = tags ? ways_tagged(tags, at->tag) : 0;

	return ways ? source_among(at, ways) : NULL;
}

static __always_inline struct fief_source *source_find(const struct front_context *front)
{
	struct source_place at;

	return source_place(&front->packet, &at) ? source_find_at(&at) : NULL;
}

static __always_inline bool source_proven(const struct front_context *front)
{
	return source_find(front);
}

/* ---- a new one ---- */

/* Whether two sources of a set are of one network, to find the one with most places in it. */
static __always_inline bool same_network(const struct source_place *at, __u64 *one, __u64 *other)
{
	if (at->ipv6)
		return kinship(one[0], other[0]) != KIN_NONE;
	return !((one[1] ^ other[1]) & bpf_cpu_to_be64(0xffff0000)); /* IPv4 /16 */
}

/* Of some places of a set the source that goes first. */
struct first_to_go {
	__u64 penalty_until_ns; /* 0: it has none */
	__u64 proven_ns;
	__u32 way;
	__u32 places;
};

/* A source that proves itself, and its set: in memory of the CPU, since the stack is short. */
struct source_look {
	struct source_place at;
	__u64 now;
	struct first_to_go of_48;
	struct first_to_go of_56;
	struct first_to_go of_most; /* of the network with most places in the set */
	__u32 free;
	__u32 most;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct source_look);
} source_looks SEC(".maps");

static __always_inline void first_begin(struct first_to_go *first)
{
	first->proven_ns = ~0ull;
	first->penalty_until_ns = ~0ull;
	first->way = FIEF_WAYS;
	first->places = 0;
}

/* Who has a penalty goes after those who have none, the one whose end is nearest first; else who was seen least lately. */
static __always_inline void first_count(struct first_to_go *first, const struct fief_source *source, __u32 way,
					__u64 now)
{
	__u64 penalty = source->penalty_until_ns > now ? source->penalty_until_ns : 0;

	first->places++;
	if (penalty > first->penalty_until_ns ||
	    (penalty == first->penalty_until_ns && source->proven_ns >= first->proven_ns))
		return;
	first->penalty_until_ns = penalty;
	first->proven_ns = source->proven_ns;
	first->way = way;
}

/* Counts what the set has of the /48 and of the /56, and finds the first free place. */
static __noinline int sources_count(struct source_look *look)
{
	struct fief_source *source;
	enum kinship kin;
	__u32 way;

	first_begin(&look->of_48);
	first_begin(&look->of_56);
	look->free = FIEF_WAYS;
	for (way = loop_from(0); way < FIEF_WAYS && can_loop; way++) {
		source = source_at(look->at.set, way);
		if (!source)
			break;
		if (!source->proven_ns) {
			if (look->free == FIEF_WAYS)
				look->free = way;
			continue;
		}
		kin = look->at.ipv6 ? kinship(look->at.words[0], source_words(source)[0]) : KIN_NONE;
		if (kin != KIN_NONE)
			first_count(&look->of_48, source, way, look->now);
		if (kin == KIN_NEAR)
			first_count(&look->of_56, source, way, look->now);
	}
	return 0;
}

/* How many sources of the set are of the same network as that at `way`, with it. */
static __always_inline __u32 places_of_network(struct source_look *look, struct fief_source *one)
{
	__u32 way, count = loop_from(0);
	struct fief_source *other;

	for (way = loop_from(0); way < FIEF_WAYS && can_loop; way++) {
		other = source_at(look->at.set, way);
		if (other && same_network(&look->at, source_words(one), source_words(other)))
			count++;
	}
	return count;
}

/* The set is full: whose network has most places in it. */
static __noinline int sources_most(struct source_look *look)
{
	struct fief_source *source;
	__u32 way, count;

	look->most = 0;
	for (way = loop_from(0); way < FIEF_WAYS && can_loop; way++) {
		source = source_at(look->at.set, way);
		if (!source)
			break;
		count = places_of_network(look, source);
		if (count < look->most)
			continue;
		if (count > look->most)
			first_begin(&look->of_most);
		look->most = count;
		first_count(&look->of_most, source, way, look->now);
	}
	return 0;
}

/* The place that a new source takes; `owed`: with what the one before it is owed, since both are one aggregate. */
static __always_inline __u32 way_for(struct source_look *look, bool *owed)
{
	sources_count(look);
	*owed = true;
	if (look->of_56.places >= FIEF_WAYS_OF_56)
		return look->of_56.way;
	if (look->of_48.places >= FIEF_WAYS_OF_48)
		return look->of_48.way;
	*owed = false;
	if (look->free < FIEF_WAYS)
		return look->free;
	sources_most(look);
	return look->of_most.way;
}

/* Nobody finds the entry by its tag until it is whole. A function of its own to the verifier, which follows it once. */
__noinline int source_add(struct source_look *look __arg_nonnull)
{
	struct way_tags *tags = bpf_map_lookup_elem(&source_tags, &look->at.set);
	struct fief_source *source;
	bool owed;
	__u32 way;

	way = way_for(look, &owed);
	source = source_at(look->at.set, way);
	if (!tags || !source || way >= FIEF_WAYS)
		return 0;
	*(volatile __u16 *)&tags->of[way] = 0;
	barrier();
	if (!owed) {
		source->arrival_ns = 0;
		source->syn_arrival_ns = 0;
		source->penalty_until_ns = 0;
	}
	source->since_ns = look->now;
	source->proven_ns = look->now;
	source_words(source)[0] = look->at.words[0];
	source_words(source)[1] = look->at.words[1];
	barrier();
	*(volatile __u16 *)&tags->of[way] = look->at.tag;
	return 0;
}

__noinline int source_prove_at(const struct packet *p __arg_nonnull, __u64 now)
{
	__u32 zero = 0;
	struct source_look *look = bpf_map_lookup_elem(&source_looks, &zero);
	struct fief_source *source;

	if (!look || !source_place(p, &look->at))
		return 0;
	look->now = now;
	source = source_find_at(&look->at);
	if (!source)
		source_add(look);
	else if (now - source->proven_ns >= PROVEN_FRESH_NS)
		source->proven_ns = now;
	return 0;
}

/* A valid cookie came back from it. */
static __always_inline void source_prove(struct front_context *front)
{
	source_prove_at(&front->packet, front->now);
}

__noinline int source_penalise_at(const struct packet *p __arg_nonnull, __u64 now, __u64 ns)
{
	struct fief_source *source;
	struct source_place at;

	source = source_place(p, &at) ? source_find_at(&at) : NULL;
	if (source && source->penalty_until_ns <= now)
		source->penalty_until_ns = now + ns;
	return 0;
}

/*
 * Its SYNs, and the cookies that it has gathered, are worth nothing for so long. A penalty that runs is not renewed: a client that sends
 * a refused request again waits no longer for it.
 */
static __always_inline void source_penalise(const struct packet *p, __u64 now, __u64 ns)
{
	if (!ns)
		return;
	source_prove_at(p, now);
	source_penalise_at(p, now, ns);
}
