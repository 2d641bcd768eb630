/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Admitted: verdicts on their way from the door to the label of the socket that is made, by flow.
 *
 * Problem: each connection notes one and looks for it three times; a hash with lists of what was used last takes half a
 * microsecond each time.
 * How: a table of cache lines in pairs. A keyed hash of the flow says which pair, and stands in the line for the flow: nobody
 * makes a flow with another's. A new verdict takes the line of the older one, whose socket is found by the addresses behind it
 * (displaced.bpf.h). Where there never was one, nobody looks: a line is a miss of the caches.
 * The first bytes of a connection pass once: packets of one batch, or of two CPUs, pass the door before TCP has the first of
 * them, and each would be ruled by itself. The first of them puts the flow's hash and the time into a word of the pair (a
 * claim). A second packet with the same begin is dropped for CLAIM_MS, and comes again. A virtual CPU may stand still for some ten
 * milliseconds between the door and TCP; a client sends its first bytes again after 200 (TCP_RTO_MIN).
 * A flow has one verdict. Those before it were of other first numbers, and their cookies may be good for two minutes: they are
 * remembered by a tag each, behind the pairs, since a program knows few tables.
 * Limits: one in 2^63 flows has another's hash, and differs in `begin`. A look while another CPU writes finds either flow's
 * verdict, or none.
 */
#pragma once

#include "maps/secrets.bpf.h"

#define ADMITTED_PAIRS 32768
#define SPENT_PAIRS    1024 /* behind the one that tells whether there is anything: tags */
#define CLAIMS	       6
#define CLAIM_TIME     0xffffffull /* the lowest bits of a claim, in ms */
#define CLAIM_MS       150	   /* in which a packet that passed the door has reached TCP, or never does */
#define CLAIM_AHEAD    1000	   /* ms: a packet has read the clock at most so long before it looks at the claims */

struct admitted_line {
	__u64 flow; /* 0: none */
	struct fief_admitted verdict;
};

/* A line of the cache of its own, which nobody reads who looks for a verdict. */
struct admitted_key {
	struct fief_flow_key of;
	__u64 claim[CLAIMS / 2]; /* of the pair's flows whose first bytes passed a moment ago */
};

/* The verdicts come first, since the memory hands out two lines at once. */
struct admitted_pair {
	struct admitted_line line[2];
	struct admitted_key key[2];
};

_Static_assert(sizeof(struct admitted_line) == 64 && sizeof(struct admitted_key) == 64, "lines of the cache");

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

/* Where the flow's verdict lies, and by which hash; NULL: there are no keys. */
static __always_inline struct admitted_pair *admitted_pair(const struct fief_flow_key *key, __u64 *hash)
{
	__u32 at;

	*hash = flow_hash(key);
	if (!*hash)
		return NULL;
	at = *hash >> 32 & (ADMITTED_PAIRS - 1);
	return bpf_map_lookup_elem(&admitted, &at);
}

static __always_inline struct fief_admitted *admitted_find(const struct fief_flow_key *key)
{
	__u64 hash, *any = admitted_any();
	struct admitted_pair *pair;

	if (any && !*any)
		return NULL;
	pair = admitted_pair(key, &hash);
	if (!pair)
		return NULL;
	if (pair->line[0].flow == hash)
		return &pair->line[0].verdict;
	return pair->line[1].flow == hash ? &pair->line[1].verdict : NULL;
}

/* The line that a flow's verdict goes into, by which hash, and its key; NULL: the installation has no secret. */
static __always_inline struct admitted_line *admitted_line(const struct fief_flow_key *key, __u64 *hash,
							   struct admitted_key **own)
{
	struct admitted_pair *pair = admitted_pair(key, hash);

	if (!pair)
		return NULL;
	*own = &pair->key[0];
	if (pair->line[0].flow == *hash ||
	    (pair->line[1].flow != *hash && pair->line[1].verdict.time_ns >= pair->line[0].verdict.time_ns))
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

/* 1: the word is not 0. The verifier would follow each outcome of each claim's conditions, so these have no branches. */
static __always_inline __u64 is_set(__u64 word)
{
	word |= -word;
	barrier_var(word); /* else clang sees a comparison, and makes a branch */
	return word >> 63;
}

/* 1: the flow's first bytes passed a moment ago, or after `now_ms`: another CPU may have looked at the clock later. */
static __always_inline __u64 claim_lasts(__u64 claim, __u64 now_ms)
{
	__u64 lasts = (now_ms + CLAIM_AHEAD - claim & CLAIM_TIME) - (CLAIM_MS + CLAIM_AHEAD);

	barrier_var(lasts);
	return is_set(claim) & lasts >> 63;
}

/* 1: the word is of the same first bytes. */
static __always_inline __u64 claim_is(__u64 claim, __u64 mine)
{
	return 1 - is_set((claim ^ mine) & ~CLAIM_TIME);
}

/*
 * Whether the first bytes of this connection may pass now. Where CLAIMS others passed a moment ago, which may be earlier
 * connections of the same ports, they wait too. `renews`: they passed before, and waited since.
 * The verifier follows a global function once, not for each way to it.
 */
__noinline int first_bytes_claim(const struct fief_flow_key *key __arg_nonnull, __u32 begin, __u32 renews)
{
	__u64 hash, mine, seen, own, lasts, now_ms = bpf_ktime_get_ns() / 1000000, passed = 0, at = CLAIMS, was = 0;
	struct admitted_pair *pair = admitted_pair(key, &hash);
	__u64 take, half, found = 0;
	__u32 i;

	if (!pair)
		return 1;
	mine = (hash_mix(hash ^ begin) & ~CLAIM_TIME) | (now_ms & CLAIM_TIME);
	for (i = 0; i < CLAIMS; i++) {
		seen = *(volatile __u64 *)&pair->key[i & 1].claim[i / 2];
		own = claim_is(seen, mine);
		lasts = claim_lasts(seen, now_ms);
		passed |= own & lasts;
		/* its own, or one that is over */
		take = -(own | (1 - lasts) & (1 - found));
		barrier_var(take);
		found |= own;
		at ^= (at ^ i) & take;
		was ^= (was ^ seen) & take;
	}
	if (passed && !renews)
		return 0;
	half = at / 2;
	barrier_var(half); /* 6.12 knows no bound of what was shifted and masked at once */
	if (half >= CLAIMS / 2)
		return renews; /* else those of others would stop the queue that it comes out of */
	if (__sync_val_compare_and_swap(&pair->key[at & 1].claim[half], was, mine) != was)
		return 0;
	/* where one that ended meanwhile led another CPU to another word, neither passes */
	for (i = 0, passed = 0; i < CLAIMS; i++) {
		seen = *(volatile __u64 *)&pair->key[i & 1].claim[i / 2];
		passed |= claim_is(seen, mine) & claim_lasts(seen, now_ms) & is_set(i ^ at);
	}
	return !passed || renews;
}

static __always_inline bool admitted_claim(const struct fief_flow_key *key, __u32 begin, bool renews)
{
	__u64 claimed = first_bytes_claim(key, begin, renews);

	barrier_var(claimed);
	return claimed & 1;
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
