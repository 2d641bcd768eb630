/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Guesses: how many segments that may be guesses at a cookie are checked.
 *
 * Problem: without timestamps a cookie has 23 bits, and enough tries forge it.
 * How: each prefix (IPv4 /24, IPv6 /48) has a budget of bad segments, and a proven source has its own. So a sender of forged
 * segments from anywhere spends other budgets than those of the connecting clients. A client whose address a guesser forges
 * sends its first bytes again. Segments that came before (resent.bpf.h) have budgets of their own, one for each time, and a
 * guess that is sent twice costs twice. Segments that pass for the one that this CPU expects (expected.bpf.h) have a budget
 * too.
 * Limits: one source forges a cookie in a day or two. A spoofer can spend the budget of a client's network or source, if it
 * sends each guess four times: a client without timestamps then has to send again and again.
 */
#pragma once

#include "hold.bpf.h"
#include "resent.bpf.h"
#include "sources.bpf.h"
#include "maps/sightings.bpf.h"

#define BAD_INTERVAL_NS	 62500000ull /* 16 a second */
#define BAD_TOLERANCE_NS 1000000000ull
#define BAD_BUDGETS	 65536

#define BAD_EXPECTED	 (RESENT_MOST + 1) /* a kind of bad segment, beside how often it came before */

/* Buckets as struct fief_bucket's, found by a keyed hash. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BAD_BUDGETS);
	__type(key, __u32);
	__type(value, __u64);
} bad_arrivals SEC(".maps");

/* Which budget the packet's source has for bad segments of this kind. */
__noinline __u32 bad_budget(const struct packet *p __arg_nonnull, __u32 kind)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	struct source_place at;
	bool proven;
	__u64 whose[2];

	if (!secret || !source_place(p, &at))
		return 0;
	proven = source_find_at(&at);
	__builtin_memcpy(whose, p->source, 16);
	if (!proven)
		network_take(whose, p->ipv6);
	else if (p->ipv6)
		whose[1] = 0;
	return hash_mix(address_hash(secret, whose) ^ (kind << 1 | proven) ^ secret->pattern[0]) & (BAD_BUDGETS - 1);
}

/* Whether no budget can be used up: each is for BAD_INTERVAL_NS after its last count at most, for each CPU that counts at once. */
static __always_inline bool none_is_bad(__u64 now)
{
	struct fief_sightings *seen = sightings_get();

	return seen && (__s64)(now - *(volatile __u64 *)&seen->bad_ns) > (__s64)BAD_TOLERANCE_NS;
}

__noinline int bad_too_many(const struct packet *p __arg_nonnull, __u64 now, __u32 kind)
{
	__u64 *budget, arrival;
	__u32 at;

	if (none_is_bad(now))
		return false;
	at = bad_budget(p, kind);
	budget = bpf_map_lookup_elem(&bad_arrivals, &at);
	if (!budget)
		return false;
	arrival = *(volatile __u64 *)budget;
	return arrival > now && arrival - now > BAD_TOLERANCE_NS;
}

__noinline int bad_count(const struct packet *p __arg_nonnull, __u64 now, __u32 kind)
{
	__u32 at = bad_budget(p, kind);
	__u64 *budget = bpf_map_lookup_elem(&bad_arrivals, &at), arrival;
	struct fief_sightings *seen = sightings_get();

	if (seen && now - seen->bad_ns > BAD_INTERVAL_NS) /* each packet that leaves reads this cache line */
		*(volatile __u64 *)&seen->bad_ns = now;
	if (!budget)
		return 0;
	arrival = *(volatile __u64 *)budget;
	if (arrival < now)
		__sync_val_compare_and_swap(budget, arrival, now + BAD_INTERVAL_NS);
	else if (arrival - now <= BAD_TOLERANCE_NS)
		__sync_fetch_and_add(budget, BAD_INTERVAL_NS);
	return 0;
}

/*
 * Whether the segment is one guess too many at the cookie of a client without timestamps. What goes on behind kept bytes is
 * none: it is known by the whole cookie.
 */
static __noinline bool is_guess(struct front_context *front, struct stream *stream)
{
	struct packet *p = &front->packet;

	if (!bad_too_many(p, front->now, 0))
		return false;
	if (!is_bare(p) && hold_find(p, stream))
		return false;
	stream->times = resent(p, front->now, RESENT_SEGMENT);
	return !stream->times || bad_too_many(p, front->now, stream->times);
}
