/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Admitted: verdicts on their way from the door to the label of the socket that is made, by flow.
 *
 * Problem: each connection notes one and looks for it three times; a hash with lists of what was used last takes half a
 * microsecond each time.
 * How: a table of cache lines in pairs. A keyed hash of the flow says which pair, and stands in the line for the flow: nobody
 * makes a flow with another's. A new verdict takes the line of the older one, whose socket is found by the addresses behind it
 * (displaced.bpf.h). Where there never was one, nobody looks: a line is a miss of the caches.
 * A flow has one verdict. Those before it were of other first numbers, and their cookies may be good for two minutes: they are
 * remembered by a tag each, behind the pairs, since a program knows few tables.
 * Limits: one in 2^63 flows has another's hash, and differs in `begin`. A look while another CPU writes finds either flow's
 * verdict, or none.
 */
#pragma once

#include "maps/secrets.bpf.h"

#define ADMITTED_PAIRS 32768
#define SPENT_PAIRS    1024 /* behind the one that tells whether there is anything: tags */
#define CLAIMS	       6    /* of a pair (claim.bpf.h) */

struct admitted_line {
	__u64 flow; /* 0: none */
	struct fief_admitted verdict;
};

/* A cache line of its own, which no search for a verdict reads. */
struct admitted_key {
	struct fief_flow_key of;
	__u64 claim[CLAIMS / 2]; /* whose first bytes passed a moment ago, of the pair's flows */
};

/* The verdicts come first, since the memory hands out two lines at once. */
struct admitted_pair {
	struct admitted_line line[2];
	struct admitted_key key[2];
};

_Static_assert(sizeof(struct admitted_line) == 64 && sizeof(struct admitted_key) == 64, "cache lines");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ADMITTED_PAIRS + 1 + SPENT_PAIRS); /* the one between tells whether there is anything */
	__uint(map_flags, BPF_F_MMAPABLE);		       /* so that it begins with a cache line */
	__type(key, __u32);
	__type(value, struct admitted_pair);
} admitted SEC(".maps");

/* Not 0 once a verdict was kept. NULL: the table is of a version without it, so that may be. */
static __always_inline __u64 *admitted_any(void)
{
	__u32 at = ADMITTED_PAIRS;
	struct admitted_pair *last = bpf_map_lookup_elem(&admitted, &at);

	return last ? &last->line[0].flow : NULL;
}

/*
 * Where the flow of this hash has its verdict; NULL: there are no keys. By a bit that all hashes have: by a test of the whole the verifier
 * would follow what comes once for 0, and once for all others.
 */
static __always_inline struct admitted_pair *admitted_pair(__u64 hash)
{
	__u32 at = hash >> 32 & (ADMITTED_PAIRS - 1);

	return hash & 1 ? bpf_map_lookup_elem(&admitted, &at) : NULL;
}

static __always_inline struct fief_admitted *verdict_of(struct admitted_pair *pair, __u64 hash)
{
	if (pair->line[0].flow == hash)
		return &pair->line[0].verdict;
	return pair->line[1].flow == hash ? &pair->line[1].verdict : NULL;
}

static __always_inline struct fief_admitted *admitted_find(const struct fief_flow_key *key)
{
	__u64 hash, *any = admitted_any();
	struct admitted_pair *pair;

	if (any && !*any)
		return NULL;
	hash = flow_hash(key);
	pair = admitted_pair(hash);
	return pair ? verdict_of(pair, hash) : NULL;
}

/* So far apart are numbers of one connection at most. With more, a later one with the same ports could be taken for it. */
#define FORGOTTEN_BYTES (1u << 24)

/* The connection ends with its next byte, `seq`. `entry`: the flow's verdict, or NULL. Whether it is the connection's. */
static __always_inline bool verdict_spend(struct fief_admitted *entry, __u32 seq)
{
	if (!entry || seq - entry->begin >= FORGOTTEN_BYTES)
		return false;
	entry->spent = 1;
	return true;
}

/* The line that a flow's verdict goes into, and its key. */
static __always_inline struct admitted_line *admitted_line(struct admitted_pair *pair, __u64 hash,
							   struct admitted_key **own)
{
	*own = &pair->key[0];
	if (pair->line[0].flow == hash ||
	    (pair->line[1].flow != hash && pair->line[1].verdict.time_ns >= pair->line[0].verdict.time_ns))
		return &pair->line[0];
	*own = &pair->key[1];
	return &pair->line[1];
}

/* The place of a verdict's tag that its flow's next one replaced, and what stands there of it. */
static __always_inline __u32 *spent_tag(__u64 hash, __u32 begin, __u32 *tag)
{
	__u64 mixed = hash_mix(hash ^ begin);
	__u32 at = ADMITTED_PAIRS + 1 + (mixed >> 54), n = mixed >> 48;
	__u32 *tags = bpf_map_lookup_elem(&admitted, &at);

	_Static_assert(SPENT_PAIRS == 1 << 10 && sizeof(struct admitted_pair) == 64 * sizeof(__u32),
		       "bits of the hash");
	*tag = mixed | 1;
	barrier_var(n);
	return tags ? &tags[n & 63] : NULL;
}

/* Whether the flow had a verdict on the connection whose first byte is `begin`, before the one that it has. */
static __always_inline bool admitted_before(const struct fief_flow_key *key, __u32 begin)
{
	__u32 tag, *place = spent_tag(flow_hash(key), begin, &tag);

	return place && *place == tag;
}

/* Its next one comes. A function of its own for the stack's sake. */
static __noinline int admitted_replace(__u64 hash, __u32 begin)
{
	__u32 tag, *place = spent_tag(hash, begin, &tag);

	if (place)
		*place = tag;
	return 0;
}

static __always_inline void admitted_keep(struct admitted_line *line, __u64 hash, struct admitted_key *own,
					  const struct fief_flow_key *key, const struct fief_admitted *verdict)
{
	__u64 *any = admitted_any();
	__u32 before = 0;

	if (any && !*any)
		*any = 1;
	if (line->flow == hash && line->verdict.begin == verdict->begin)
		before = line->verdict.verdicts;
	else if (line->flow == hash)
		admitted_replace(hash, line->verdict.begin);
	*(volatile __u64 *)&line->flow = 0;
	barrier();
	own->of = *key;
	line->verdict = *verdict;
	line->verdict.verdicts += before;
	line->verdict.cpu = bpf_get_smp_processor_id();
	barrier();
	*(volatile __u64 *)&line->flow = hash;
}

/*
 * The verdict upon a connection whose first byte is `begin`, once: whoever makes the socket's label takes it. NULL: there is
 * none. It stays readable for the caller.
 */
static __always_inline struct fief_admitted *admitted_spend(const struct fief_flow_key *key, __u32 begin)
{
	struct fief_admitted *entry = admitted_find(key);

	if (!entry || entry->spent || entry->begin != begin)
		return NULL;
	entry->spent = 1;
	return entry;
}
