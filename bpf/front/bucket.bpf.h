/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Bucket: whether one more is within a rate (generic cell rate algorithm, ITU-T I.371; struct fief_bucket).
 *
 * Problem: all CPUs share a limit; with a bucket for each CPU the rate would multiply by their number.
 * How: the state is one word, moved by compare-and-swap. A bucket of CPU time moves by what its container was charged since the
 * last look. A request conforms while the bucket is not too far ahead: the cost of a request is known only afterwards, so the
 * next ones pay. Buckets "per source" lie in sets. A new one takes the place of the emptiest of its set, or of its aggregate if
 * that has all its places (flow/aggregate.bpf.h).
 * Limits: a missing bucket limits nothing. CPU time is read once in LOOK_NS.
 */
#pragma once

#include "flow/aggregate.bpf.h"
#include "bytes.bpf.h"
#include "context.bpf.h"
#include "spent.bpf.h"
#include "maps/bucket_tables.bpf.h"
#include "maps/secrets.bpf.h"
#include "maps/source_buckets.bpf.h"

#define LOOK_NS 1000000ull

/* Takes one cell, unless it comes too early. A function of its own to the verifier, which follows its loop once. */
__noinline int cell_take(__u64 *arrival __arg_nonnull, __u64 interval, __u64 tolerance, __u64 now)
{
	__u64 seen, base;

	while (can_loop) {
		seen = *(volatile __u64 *)arrival;
		base = seen > now ? seen : now;
		if (base - now > tolerance)
			return 0;
		if (__sync_val_compare_and_swap(arrival, seen, base + interval) == seen)
			return 1;
	}
	return 0;
}

/* Whether a cell would come too early. */
static __always_inline bool cell_early(const __u64 *arrival, __u64 tolerance, __u64 now)
{
	__u64 seen = *(const volatile __u64 *)arrival;

	return seen > now && seen - now > tolerance;
}

/* Of some places of a set the emptiest bucket, which is forgotten first since it says least. */
struct emptiest {
	__u64 arrival_ns;
	__u32 way;
	__u32 places;
};

/* Whose bucket is looked for, and where: in memory of the CPU, since the stack is short. */
struct source_bucket_look {
	struct fief_source_bucket of;
	__u64 words[2]; /* the network that its set is of */
	__u32 set;
	__u32 at; /* in the table */
	__u16 tag;
	__u16 pad[3];
	struct emptiest all;
	struct emptiest of_48;
	struct emptiest of_56;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct source_bucket_look);
} source_bucket_looks SEC(".maps");

static __always_inline void emptiest_begin(struct emptiest *of)
{
	of->arrival_ns = ~0ull;
	of->way = FIEF_WAYS;
	of->places = 0;
}

static __always_inline void emptiest_count(struct emptiest *of, const struct fief_source_bucket *kept, __u32 way)
{
	of->places++;
	if (kept->arrival_ns >= of->arrival_ns)
		return;
	of->arrival_ns = kept->arrival_ns;
	of->way = way;
}

/* Counts what the set has of all, of the /48 and of the /56. */
static __noinline int source_buckets_count(struct source_bucket_look *look)
{
	struct fief_source_bucket *kept;
	enum kinship kin;
	__u32 way, at;

	emptiest_begin(&look->all);
	emptiest_begin(&look->of_48);
	emptiest_begin(&look->of_56);
	for (way = loop_from(0); way < FIEF_WAYS && can_loop; way++) {
		at = look->set * FIEF_WAYS + way;
		kept = bpf_map_lookup_elem(&source_buckets, &at);
		if (!kept)
			break;
		emptiest_count(&look->all, kept, way);
		if (!look->of.ipv6 || !kept->ipv6 || kept->bucket != look->of.bucket || kept->slot != look->of.slot)
			continue;
		kin = kinship(kept->source, look->of.source);
		if (kin != KIN_NONE)
			emptiest_count(&look->of_48, kept, way);
		if (kin == KIN_NEAR)
			emptiest_count(&look->of_56, kept, way);
	}
	return 0;
}

/* Makes one: as full as the one before it in its place, if both are one aggregate; false: there is no place. */
__noinline int source_bucket_add(struct source_bucket_look *look __arg_nonnull)
{
	struct way_tags *tags = bpf_map_lookup_elem(&source_bucket_tags, &look->set);
	struct fief_source_bucket *kept;
	bool owed = true;
	__u32 way;

	source_buckets_count(look);
	if (look->of_56.places >= FIEF_WAYS_OF_56) {
		way = look->of_56.way;
	} else if (look->of_48.places >= FIEF_WAYS_OF_48) {
		way = look->of_48.way;
	} else {
		way = look->all.way;
		owed = false;
	}
	look->at = look->set * FIEF_WAYS + way;
	kept = bpf_map_lookup_elem(&source_buckets, &look->at);
	if (!tags || !kept || way >= FIEF_WAYS)
		return false;
	*(volatile __u16 *)&tags->of[way] = 0;
	barrier();
	if (!owed)
		kept->arrival_ns = 0;
	kept->source = look->of.source;
	kept->bucket = look->of.bucket;
	kept->slot = look->of.slot;
	kept->ipv6 = look->of.ipv6;
	barrier();
	*(volatile __u16 *)&tags->of[way] = look->tag;
	return true;
}

/* Where its set is; false: there are no keys. */
static __always_inline bool source_bucket_place(const struct packet *p, struct source_bucket_look *look)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	__u64 hash;

	if (!secret)
		return false;
	__builtin_memcpy(look->words, p->source, 16);
	look->of.source = p->ipv6 ? look->words[0] : look->words[1];
	look->of.ipv6 = p->ipv6;
	if (p->ipv6) {
		look->words[0] = first_bits(look->words[0], IPV6_48);
		look->words[1] = 0;
	}
	hash = hash_mix(address_hash(secret, look->words) ^ ((__u64)look->of.bucket << 8 | look->of.slot));
	look->set = hash >> 32 & (FIEF_SOURCE_SETS - 1);
	look->tag = way_tag(hash_mix(hash ^ look->of.source));
	return true;
}

/* Finds the source's own bucket, at look->at. */
__noinline int source_bucket_find(const struct packet *p __arg_nonnull, struct source_bucket_look *look __arg_nonnull)
{
	struct fief_source_bucket *kept;
	struct way_tags *tags;
	__u32 ways, way;

	if (!source_bucket_place(p, look))
		return false;
	tags = bpf_map_lookup_elem(&source_bucket_tags, &look->set);
	ways = tags ? ways_tagged(tags, look->tag) : 0;
	for (way = loop_from(0); ways >> way && can_loop; way++) {
		if (!(ways >> way & 1))
			continue;
		look->at = look->set * FIEF_WAYS + way;
		kept = bpf_map_lookup_elem(&source_buckets, &look->at);
		if (kept && kept->source == look->of.source && kept->bucket == look->of.bucket &&
		    kept->slot == look->of.slot && kept->ipv6 == look->of.ipv6)
			return true;
	}
	return false;
}

/* Takes one of the source's own; where there is none nothing is limited. */
static __always_inline bool source_take(const struct packet *p, __u32 slot, __u32 number, struct fief_bucket *bucket,
					__u64 now)
{
	__u32 zero = 0;
	struct source_bucket_look *look = bpf_map_lookup_elem(&source_bucket_looks, &zero);
	struct fief_source_bucket *kept;

	if (!look)
		return true;
	look->of.bucket = number;
	look->of.slot = slot;
	if (!source_bucket_find(p, look) && !source_bucket_add(look))
		return true;
	kept = bpf_map_lookup_elem(&source_buckets, &look->at);
	return !kept || cell_take(&kept->arrival_ns, bucket->interval_ns, bucket->tolerance_ns, now);
}

/* Whether the source has reached the rate with what is in its bucket. */
__noinline int source_reached(const struct packet *p __arg_nonnull, __u32 slot, __u32 number,
			      struct fief_bucket *bucket __arg_nonnull, __u64 now)
{
	__u32 zero = 0;
	struct source_bucket_look *look = bpf_map_lookup_elem(&source_bucket_looks, &zero);
	struct fief_source_bucket *kept;

	if (!look)
		return false;
	look->of.bucket = number;
	look->of.slot = slot;
	if (!source_bucket_find(p, look))
		return false;
	kept = bpf_map_lookup_elem(&source_buckets, &look->at);
	return kept && cell_early(&kept->arrival_ns, bucket->tolerance_ns, now);
}

/* At most so much is owed: what is charged may be for no request of the rule, and goes on while its requests are refused. */
#define TIME_OWED_NS 60000000000ull

/* Moves a bucket of CPU time by what its container was charged since the last look. */
static __always_inline void time_charge(struct fief_bucket *bucket, __u64 now)
{
	__u64 looked = *(volatile __u64 *)&bucket->looked_ns, spent, before, seen, base, moved, at;
	__u64 most = now + bucket->tolerance_ns + TIME_OWED_NS;

	if (looked && (__s64)(now - looked) < (__s64)LOOK_NS)
		return;
	if (__sync_val_compare_and_swap(&bucket->looked_ns, looked, now) != looked)
		return;
	spent = container_spent(bucket->container.id, now);
	before = bucket->used_ns;
	if (spent < before)
		spent = container_spent(bucket->container.id, now); /* a flush in between was not seen */
	bucket->used_ns = spent;
	if (!looked || spent <= before)
		return;
	moved = (spent - before) * bucket->interval_ns / 1000;
	while (can_loop) {
		seen = *(volatile __u64 *)&bucket->arrival_ns;
		base = seen > looked ? seen : looked; /* the time since then was there to be used */
		at = base + moved < most ? base + moved : most;
		if (__sync_val_compare_and_swap(&bucket->arrival_ns, seen, at) == seen)
			break;
	}
}

static __always_inline bool time_left(struct fief_bucket *bucket, __u64 now)
{
	time_charge(bucket, now);
	return bucket->arrival_ns <= now || bucket->arrival_ns - now <= bucket->tolerance_ns;
}

static __always_inline struct fief_bucket *bucket_find(__u32 slot, __u32 number)
{
	void *table = number ? bpf_map_lookup_elem(&bucket_tables, &slot) : NULL;

	return table ? bpf_map_lookup_elem(table, &number) : NULL;
}

/* A function of its own to the verifier, which then follows it once and not from each place that it is called from. */
__noinline int bucket_take_one(const struct packet *p __arg_nonnull, __u32 slot, __u32 number,
			       struct fief_bucket *bucket __arg_nonnull, __u64 now)
{
	switch (bucket->kind) {
	case FIEF_BUCKET_PER_SOURCE:
		return source_take(p, slot, number, bucket, now);
	case FIEF_BUCKET_CPU:
		return time_left(bucket, now);
	default:
		return cell_take(&bucket->arrival_ns, bucket->interval_ns, bucket->tolerance_ns, now);
	}
}
