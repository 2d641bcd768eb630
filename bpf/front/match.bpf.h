/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Match: the first rule of a listener that matches a request.
 *
 * Problem: there are up to a million rules of many kinds and prefix lengths, and each request may need other ones. Every lookup
 * in a big table misses the cache.
 * How: rules with the same kinds and lengths of conditions are one shape (struct fief_shape), found by one hash. A word of a
 * Bloom filter excludes most shapes that do not match; since nearly all of those branches go the same way, the loads of many
 * shapes are under way at once. Shapes are in the order of their first rule, and the search ends at the first that cannot hold
 * an earlier rule than the best found.
 * Limits: a rule below its level of overload does not exist. A rule on trial (monitor) is reported apart, and the next one
 * decides.
 */
#pragma once

#include "bloom.bpf.h"
#include "header.bpf.h"
#include "clienthello.bpf.h"
#include "rule_table.bpf.h"
#include "maps/secrets.bpf.h"

/* What is found for one request, and what is needed to find it: of each CPU, since the stack is short. */
struct match_state {
	struct fief_request best;   /* rule FIEF_NO_ID: none */
	struct fief_request shadow; /* on trial, and earlier than best */
	/* of all readings so far (readings.bpf.h) */
	struct fief_request strictest;
	struct fief_request trial;
	struct request_span host; /* as it stands in the request */
	__u32 part;		  /* where the next part of it begins */
	__u32 read;		  /* how many readings there were */
	__u32 spent;		  /* of all requests of the packet */
	__u32 slot;		  /* of the policy; by the caller, as the next */
	__u32 level;		  /* enum fief_level: of overload, now */
	struct hashes hashes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct front_request);
} requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct match_state);
} matches SEC(".maps");

/* The rule with a pattern of this hash. A function of its own for the stack, which is short where hashes are made. */
static __noinline struct fief_request *pattern_find(const struct fief_guard *guard, __u32 slot, __u32 shape, __u64 hash)
{
	void *table = bpf_map_lookup_elem(&rule_tables, &slot);

	return table ? record_at(table, record_find(table, &guard->patterns, hash ^ shape)) : NULL;
}

static __always_inline bool looks_at_alpn(const struct fief_shape *shape)
{
	__u32 i;

	for (i = 0; i < FIEF_CONDITIONS; i++) {
		if (i < shape->conditions && shape->condition[i].field == FIEF_FIELD_ALPN)
			return true;
	}
	return false;
}

/* Takes a rule that was found, if it is in force and the first. */
static __always_inline void match_take(struct match_state *match, const struct fief_request *found)
{
	struct fief_request *as;

	if (found->level > match->level || found->rule >= match->best.rule)
		return;
	as = found->monitor ? &match->shadow : &match->best;
	if (found->rule < as->rule)
		*as = *found;
}

/* Finds the first rule in force, and the first on trial before it. */
__noinline int rule_find(const struct request_bytes *bytes __arg_nonnull, struct front_request *request __arg_nonnull,
			 const struct fief_guard *guard __arg_nonnull, struct match_state *match __arg_nonnull)
{
	const struct fief_shape *shape;
	struct fief_request *found;
	__u32 i;

	hashes_forget(&match->hashes);
	match->best.rule = FIEF_NO_ID;
	match->shadow.rule = FIEF_NO_ID;
	match->hashes.alpn = 0;
	for (i = loop_from(0); i < guard->shapes && can_loop;) {
		if (i >= FIEF_SHAPES)
			break;
		shape = &guard->shape[i];
		if (shape->first_rule >= match->best.rule)
			break;
		/* most are ruled out without a look */
		if (shape_hash(bytes, request, &match->hashes, shape) &&
		    bloom_holds(guard->bloom, guard->bloom_mask, match->hashes.shape)) {
			found = pattern_find(guard, match->slot, i, match->hashes.shape);
			if (found)
				match_take(match, found);
		}
		if (++match->hashes.alpn >= request->alpns || !looks_at_alpn(shape)) {
			match->hashes.alpn = 0;
			i++;
		}
	}
	if (match->shadow.rule >= match->best.rule)
		match->shadow.rule = FIEF_NO_ID;
	return 0;
}
