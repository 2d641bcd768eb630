/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sources: which addresses have proved that they are there, and which prefixes send too many SYNs.
 *
 * Problem: the source of a SYN can be anybody's address: who punishes it punishes the one whose address it is.
 * How: an address that returned a cookie receives what is sent there: it is proven, has a bucket of its own, and is
 * punished for its own requests only. The others are metered by prefix (IPv4 /24, IPv6 /64); a prefix above the
 * threshold is isolated: its unproven addresses are not answered for a while. Each prefix has two places in a table of
 * fixed size, found by a keyed hash; whoever finds both taken by others wears down the weaker, so that only those who
 * send much hold their place (Misra and Gries 1982).
 * Limits: the table of proven addresses forgets the least recent. An IPv6 source is its /64. New clients of an isolated
 * prefix wait until the flood ends.
 */
#pragma once

#include "context.bpf.h"
#include "hash.bpf.h"
#include "marks.bpf.h"
#include "maps/meters.bpf.h"
#include "maps/secrets.bpf.h"

#define METER_WINDOW_NS 1000000000ull
#define PROVEN_FRESH_NS 1000000000ull /* no write for each cookie of a busy client */

static __always_inline void source_key(const struct packet *p, struct in6_addr *key)
{
	__builtin_memcpy(key, p->source, 16);
	if (p->ipv6)
		__builtin_memset((__u8 *)key + 8, 0, 8);
}

static __always_inline struct fief_source *source_find(const struct front_context *front)
{
	struct in6_addr key;

	source_key(&front->packet, &key);
	return source_marked(&key) ? bpf_map_lookup_elem(&sources, &key) : NULL;
}

static __always_inline bool source_proven(const struct front_context *front)
{
	return source_find(front);
}

/* A valid cookie came back from it. */
static __noinline void source_prove(struct front_context *front)
{
	struct fief_source fresh = {.proven_ns = front->now}, *source;
	struct in6_addr key;

	source_key(&front->packet, &key);
	source_mark(&key);
	source = bpf_map_lookup_elem(&sources, &key);
	if (!source)
		bpf_map_update_elem(&sources, &key, &fresh, BPF_NOEXIST);
	else if (front->now - source->proven_ns >= PROVEN_FRESH_NS)
		source->proven_ns = front->now;
}

/* Its SYNs are dropped for so long. */
static __always_inline void source_penalise(struct front_context *front, __u64 ns)
{
	struct fief_source *source;

	if (!ns)
		return;
	source_prove(front);
	source = source_find(front);
	if (source)
		source->penalty_until_ns = front->now + ns;
}

/* ---- prefixes ---- */

static __always_inline void meter_prefix(const struct packet *p, __u64 *prefix)
{
	__builtin_memcpy(prefix, p->source, 16);
	if (p->ipv6)
		prefix[1] = 0;
	else
		prefix[1] &= bpf_cpu_to_be64(~0xffull);
}

static __always_inline bool meter_is(const struct fief_meter *meter, const __u64 *prefix, __u32 listener)
{
	const __u64 *words = (const __u64 *)meter->prefix;

	return words[0] == prefix[0] && words[1] == prefix[1] && meter->listener == listener && meter->window_ns;
}

/* How strongly a place is held now; an old window holds nothing. */
static __always_inline __u32 meter_held(const struct fief_meter *meter, __u64 now)
{
	if (meter->isolated_until_ns > now)
		return ~0u;
	return now - meter->window_ns < METER_WINDOW_NS ? meter->syns : 0;
}

static __always_inline void meter_take(struct fief_meter *meter, const __u64 *prefix, __u32 listener, __u64 now)
{
	__u64 *words = (__u64 *)meter->prefix;

	words[0] = prefix[0];
	words[1] = prefix[1];
	meter->listener = listener;
	meter->window_ns = now;
	meter->isolated_until_ns = 0;
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

/* Whether the prefix of an unproven source is isolated, this SYN counted. */
static __noinline bool prefix_isolated(struct front_context *front)
{
	__u32 zero = 0, at, other, held, held_other, listener = front->listener->index;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	const struct fief_guard *guard = front->guard;
	struct fief_meter *meter, *second;
	__u64 prefix[2], hash, now = front->now;
	bool isolated;

	if (!secret)
		return false;
	meter_prefix(&front->packet, prefix);
	hash = hash_mix(address_hash(secret, prefix) ^ listener ^ secret->pattern[1]);
	at = hash & (FIEF_METERS - 1);
	other = hash >> 32 & (FIEF_METERS - 1);
	meter = bpf_map_lookup_elem(&meters, &at);
	if (!meter)
		return false;
	if (!meter_is(meter, prefix, listener)) {
		second = bpf_map_lookup_elem(&meters, &other);
		if (!second)
			return false;
		if (!meter_is(second, prefix, listener)) {
			held = meter_held(meter, now);
			held_other = meter_held(second, now);
			if (held > held_other) {
				meter = second;
				held = held_other;
			}
			if (!held)
				meter_take(meter, prefix, listener, now);
			else if (held != ~0u)
				__sync_fetch_and_sub(&meter->syns, 1);
			return false;
		}
		meter = second;
	}
	isolated = meter->isolated_until_ns > now;
	if (meter_count(meter, guard->isolate_above, now)) {
		meter->isolated_until_ns = now + guard->isolate_ns;
		return true;
	}
	return isolated;
}
