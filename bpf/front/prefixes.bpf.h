/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Prefixes: which networks send too many SYNs.
 *
 * Problem: a flood comes from addresses that may be invented; they have at most the network in common.
 * How: SYNs of unproven sources are metered by prefix (IPv4 /24; IPv6 /64, and /48 with WIDER times the threshold); a prefix
 * above the threshold is isolated for a while. Each prefix has two places in a table of fixed size, found by a keyed hash. A
 * prefix that finds both taken by others decrements the weaker one, so that only prefixes that send much hold their place
 * (Misra and Gries 1982). An isolated one holds its place while it goes on, and then against some multiple of what isolated it.
 * Limits: new clients of an isolated prefix are answered last (`into`), or wait until the flood ends.
 */
#pragma once

#include "flow/aggregate.bpf.h"
#include "context.bpf.h"
#include "hash.bpf.h"
#include "maps/meters.bpf.h"
#include "maps/secrets.bpf.h"

#define METER_WINDOW_NS 1000000000ull
#define SILENT_NS	2000000000ull /* an isolated prefix that sends one SYN a second holds its place */
#define HELD_SYNS	16	      /* of others wear its place down by one */
#define WIDER		4	      /* a /48 has many customers; one of them alone must not isolate it */

/* A prefix at a listener. */
struct metered {
	__u64 words[2];
	__u32 listener;
	__u32 length;
};

static __always_inline void metered_prefix(const struct packet *p, __u32 listener, bool wide, struct metered *of)
{
	__builtin_memcpy(of->words, p->source, 16);
	of->listener = listener;
	if (p->ipv6) {
		of->length = wide ? IPV6_48 : 64;
		of->words[0] = wide ? first_bits(of->words[0], IPV6_48) : of->words[0];
		of->words[1] = 0;
	} else {
		of->length = 24;
		of->words[1] &= bpf_cpu_to_be64(~0xffull);
	}
}

static __always_inline bool meter_is(const struct fief_meter *meter, const struct metered *of)
{
	const __u64 *words = (const __u64 *)meter->prefix;

	return words[0] == of->words[0] && words[1] == of->words[1] && meter->listener == of->listener &&
	       meter->length == of->length && meter->window_ns;
}

/* How strongly a place is held now; an old window holds nothing, but for an isolated prefix, which others wear down while it is silent. */
static __always_inline __u32 meter_held(const struct fief_meter *meter, __u64 now)
{
	if (meter->isolated_until_ns > now)
		return now - meter->window_ns < SILENT_NS ? ~0u : meter->held;
	return now - meter->window_ns < METER_WINDOW_NS ? meter->syns : 0;
}

/* A prefix without a place wears the weaker one down. Two CPUs that saw the last one take it off once. */
static __always_inline void meter_wear(struct fief_meter *meter, __u32 held, __u64 now)
{
	if (held == ~0u)
		return;
	if (meter->isolated_until_ns <= now)
		__sync_val_compare_and_swap(&meter->syns, held, held - 1);
	else if (!(bpf_get_prandom_u32() % HELD_SYNS))
		*(volatile __u8 *)&meter->held = held - 1;
}

static __always_inline void meter_take(struct fief_meter *meter, const struct metered *of, __u64 now)
{
	__u64 *words = (__u64 *)meter->prefix;

	words[0] = of->words[0];
	words[1] = of->words[1];
	meter->listener = of->listener;
	meter->length = of->length;
	meter->window_ns = now;
	meter->isolated_until_ns = 0;
	meter->held = 0;
	meter->syns = 1;
}

/* Counts a SYN; true: its prefix has had more than `above` within the window. */
static __always_inline bool meter_count(struct fief_meter *meter, __u32 above, __u64 now)
{
	if (now - meter->window_ns >= METER_WINDOW_NS) {
		meter->window_ns = now;
		meter->syns = 1;
		return false;
	}
	return __sync_fetch_and_add(&meter->syns, 1) >= above;
}

/* The two places of a prefix. */
static __always_inline bool meter_places(const struct metered *of, struct fief_meter **one, struct fief_meter **other)
{
	__u32 zero = 0, at;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	__u64 hash;

	if (!secret)
		return false;
	hash = hash_mix(address_hash(secret, of->words) ^ of->listener ^ of->length << 16 ^ secret->pattern[1]);
	at = hash & (FIEF_METERS - 1);
	*one = bpf_map_lookup_elem(&meters, &at);
	at = hash >> 32 & (FIEF_METERS - 1);
	*other = bpf_map_lookup_elem(&meters, &at);
	return *one && *other;
}

static __noinline struct fief_meter *meter_find(const struct metered *of)
{
	struct fief_meter *one, *other;

	if (!meter_places(of, &one, &other))
		return NULL;
	if (meter_is(one, of))
		return one;
	return meter_is(other, of) ? other : NULL;
}

/* A prefix that has no place: it takes one that nobody holds, or wears down the weaker. */
static __noinline int meter_begin(const struct metered *of, __u64 now)
{
	struct fief_meter *one, *other;
	__u32 held, held_other;

	if (!meter_places(of, &one, &other))
		return 0;
	held = meter_held(one, now);
	held_other = meter_held(other, now);
	if (held > held_other) {
		one = other;
		held = held_other;
	}
	if (!held)
		meter_take(one, of, now);
	else
		meter_wear(one, held, now);
	return 0;
}

/* Whether the prefix is isolated, this SYN counted; then for `ns`. */
static __always_inline bool metered_isolated(const struct metered *of, __u32 above, __u64 ns, __u64 now)
{
	struct fief_meter *meter = meter_find(of);
	bool isolated;

	if (!meter) {
		meter_begin(of, now);
		return false;
	}
	isolated = meter->isolated_until_ns > now;
	if (!meter_count(meter, above, now))
		return isolated;
	if (!isolated)
		meter->isolated_since_ns = now;
	meter->held = above < 255 ? above + 1 : 255;
	meter->isolated_until_ns = now + ns;
	return true;
}

/* What a /64 is isolated for does not count for its /48. A function of its own to the verifier. */
__noinline int prefix_meter(const struct packet *p __arg_nonnull, __u32 listener, __u32 above, __u64 ns, __u64 now)
{
	struct metered of;

	metered_prefix(p, listener, false, &of);
	if (metered_isolated(&of, above, ns, now))
		return true;
	if (!p->ipv6)
		return false;
	metered_prefix(p, listener, true, &of);
	return metered_isolated(&of, above * WIDER, ns, now);
}

/* Whether a prefix of an unproven source is isolated, this SYN counted. */
static __always_inline bool prefix_isolated(struct front_context *front)
{
	const struct fief_guard *guard = front->guard;

	return prefix_meter(&front->packet, front->listener.index, guard->isolate_above, guard->isolate_ns, front->now);
}

/* Since when the prefix has been isolated without a break; 0: it is not. */
static __always_inline __u64 metered_since(const struct metered *of, __u64 now)
{
	struct fief_meter *meter = meter_find(of);

	return meter && meter->isolated_until_ns > now ? meter->isolated_since_ns : 0;
}
