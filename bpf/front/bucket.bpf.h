/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Bucket: whether one more is within a rate (generic cell rate algorithm, ITU-T I.371; struct fief_bucket).
 *
 * Problem: all CPUs share a limit; a bucket for each CPU would let as many times the rate through.
 * How: the state is one word, moved by compare-and-swap. A bucket of CPU time is moved by what its container has been
 * charged since the last look, and a request conforms while it is not too far ahead: what a request costs is known only
 * afterwards, so the next ones pay.
 * Limits: a bucket that is not there limits nothing. CPU time is looked at once in LOOK_NS.
 */
#pragma once

#include "context.bpf.h"
#include "bytes.bpf.h"
#include "spent.bpf.h"
#include "maps/bucket_tables.bpf.h"
#include "maps/source_buckets.bpf.h"

#define LOOK_NS 1000000ull

/* Takes one cell, unless it comes too early. */
static __always_inline bool cell_take(__u64 *arrival, __u64 interval, __u64 tolerance, __u64 now)
{
	__u64 seen, base;

	while (can_loop) {
		seen = *(volatile __u64 *)arrival;
		base = seen > now ? seen : now;
		if (base - now > tolerance)
			return false;
		if (__sync_val_compare_and_swap(arrival, seen, base + interval) == seen)
			return true;
	}
	return false;
}

static __always_inline void source_bucket_key(const struct packet *p, struct fief_source_bucket_key *key)
{
	__builtin_memcpy(key->address, p->source, 16);
	if (p->ipv6)
		__builtin_memset(key->address + 8, 0, 8);
}

static __always_inline bool source_take(const struct packet *p, __u32 slot, __u32 number, struct fief_bucket *bucket,
					__u64 now)
{
	struct fief_source_bucket_key key = {.bucket = number, .slot = slot};
	__u64 *arrival, first = now + bucket->interval_ns;

	source_bucket_key(p, &key);
	arrival = bpf_map_lookup_elem(&source_buckets, &key);
	if (!arrival) {
		if (!bpf_map_update_elem(&source_buckets, &key, &first, BPF_NOEXIST))
			return true;
		arrival = bpf_map_lookup_elem(&source_buckets, &key);
		if (!arrival)
			return true;
	}
	return cell_take(arrival, bucket->interval_ns, bucket->tolerance_ns, now);
}

/* Moves a bucket of CPU time by what its container was charged since the last look. */
static __always_inline void time_charge(struct fief_bucket *bucket, __u64 now)
{
	__u64 looked = *(volatile __u64 *)&bucket->looked_ns, spent, before, seen, base, moved;

	if (looked && now - looked < LOOK_NS)
		return;
	if (__sync_val_compare_and_swap(&bucket->looked_ns, looked, now) != looked)
		return;
	spent = container_spent(bucket->container.id, now);
	before = bucket->used_ns;
	bucket->used_ns = spent;
	if (!looked || spent <= before)
		return;
	moved = (spent - before) * bucket->interval_ns / 1000;
	while (can_loop) {
		seen = *(volatile __u64 *)&bucket->arrival_ns;
		base = seen > looked ? seen : looked; /* the time since then was there to be used */
		if (__sync_val_compare_and_swap(&bucket->arrival_ns, seen, base + moved) == seen)
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

/* Takes one out of bucket `number`, which is `bucket`; false: the rate is reached. */
static __always_inline bool bucket_take(struct front_context *front, __u32 number, struct fief_bucket *bucket)
{
	return bucket_take_one(&front->packet, front->slot, number, bucket, front->now);
}
