/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which listener of the policy an address is, and which class a client of it belongs to.
 *
 * Problem: every SYN and every accepted connection asks, over thousands of prefixes.
 * How: one look into the rule table for each prefix length that the listener's rules use in the source's region, longest
 * first, unless a filter of all prefixes rules it out. The policy compiler has turned "first match wins" into longest
 * prefixes, so the first hit is the answer. Each CPU keeps its last answers.
 * Limits: addresses are IPv6 or IPv4 mapped, in network order.
 */
#pragma once

#include "bits.bpf.h"
#include "bloom.bpf.h"
#include "flow/address.bpf.h"
#include "maps/controls.bpf.h"
#include "maps/listeners.bpf.h"
#include "maps/prefix_lengths.bpf.h"
#include "rule_table.bpf.h"

/* The tables in force: 0 or 1. */
static __always_inline __u32 policy_slot(void)
{
	struct fief_control *control = control_get();

	return control ? control->slot & 1 : 0;
}

static __always_inline struct fief_listener *listener_at(struct fief_listener_key *key)
{
	return bpf_map_lookup_elem(&listeners, key);
}

/* A connection to `address` (16 bytes): the listener of just this address, of every IPv4 address, of every
 * address. */
static __always_inline struct fief_listener *find_listener(__u32 slot, const void *address, __u16 port)
{
	struct fief_listener_key key = {.port = port, .slot = slot};
	__u32 *words = (__u32 *)key.address;
	struct fief_listener *found;

	__builtin_memcpy(key.address, address, 16);
	found = listener_at(&key);
	if (found)
		return found;
	if (!words[0] && !words[1] && words[2] == MAPPED_PREFIX && words[3]) {
		words[3] = 0;
		found = listener_at(&key);
		if (found)
			return found;
	}
	words[0] = words[1] = words[2] = words[3] = 0;
	return listener_at(&key);
}

/* What a socket bound to this address serves; its own kind of wildcard, then the other. `only`: it is known
 * to be IPv6 only. */
static __always_inline struct fief_listener *bound_listener(const void *address, __u16 port, bool only)
{
	struct fief_listener_key key = {.port = port, .slot = policy_slot()};
	__u32 *words = (__u32 *)key.address;
	struct fief_listener *found;

	__builtin_memcpy(key.address, address, 16);
	found = listener_at(&key);
	if (found || words[0] || words[1] || words[3])
		return found;
	if (words[2] && words[2] != MAPPED_PREFIX)
		return NULL;
	if (!words[2] && only)
		return NULL;
	words[2] ^= MAPPED_PREFIX;
	return listener_at(&key);
}

static __always_inline void mask_address(__u8 *masked, const void *address, __u32 length)
{
	__u64 high = 0, low = 0;
	__u64 words[2];

	__builtin_memcpy(words, address, 16);
	if (length >= 64) {
		high = words[0];
		if (length > 64)
			low = words[1] & bpf_cpu_to_be64(~0ull << ((128 - length) & 63));
	} else if (length) {
		high = words[0] & bpf_cpu_to_be64(~0ull << ((64 - length) & 63));
	}
	words[0] = high;
	words[1] = low;
	__builtin_memcpy(masked, words, 16);
}

/* The bits of the prefix lengths that can be around a source. */
static __always_inline __u64 lengths_around(const struct fief_prefix_lengths *used, __u64 high, __u64 low)
{
	__u64 region = bpf_be64_to_cpu(high) >> (64 - FIEF_REGION_IPV6), *word;
	__u32 at;

	low = bpf_be64_to_cpu(low);
	region ^= region >> 16;
	if (!high && low >> 32 == 0xffff)
		region = low >> (32 - FIEF_REGION_IPV4);
	at = used->regions + (__u32)(region & used->region_mask);
	word = bpf_map_lookup_elem(&blooms, &at);
	return word ? *word : 0;
}

/*
 * Line of the client record of the source's prefix of this length; 0: there is none. The filter spares a look into the
 * table, where further lengths may need one.
 */
static __always_inline __u32 client_of_length(const struct fief_prefix_lengths *used, void *table, const __u64 *source,
					      __u32 length, bool filtered)
{
	__u64 masked[2], hash;

	mask_address((__u8 *)masked, source, length);
	hash = hash_mix((hash_mix(masked[0] ^ used->secret) ^ masked[1]) + length * HASH_GOLDEN);
	if (filtered && !bloom_holds(used->bloom, used->bloom_mask, hash))
		return 0;
	return record_find(table, &used->prefixes, hash);
}

/*
 * Line of the client record that is for a source, in the slot's rule table; 0: none. A function of its own to the
 * verifier, which then follows it once and not from each place that asks.
 */
__noinline __u32 client_search(__u32 slot, __u32 listener, __u64 source_high, __u64 source_low)
{
	__u32 at = slot * FIEF_MAX_LISTENERS + listener, of_bit = 0, client;
	struct fief_prefix_lengths *used = bpf_map_lookup_elem(&prefix_lengths, &at);
	void *table = bpf_map_lookup_elem(&rule_tables, &slot);
	__u64 source[2] = {source_high, source_low}, left;
	bool filtered;

	if (!used || !table || listener >= FIEF_MAX_LISTENERS)
		return 0;
	left = used->everywhere;
	if (used->filtered)
		left |= lengths_around(used, source_high, source_low);
	while (left && can_loop) {
		at = (lowest_bit(left) << (used->bit_shift & 1)) + of_bit;
		if (at >= FIEF_PREFIX_LENGTHS)
			break;
		filtered = used->filtered && (left & (left - 1));
		client = client_of_length(used, table, source, used->length[at], filtered);
		if (client)
			return client;
		of_bit = used->bit_shift & ~of_bit;
		if (!of_bit)
			left &= left - 1;
	}
	return used->any;
}

static __always_inline struct fief_client *client_at(__u32 slot, __u32 line)
{
	void *table = bpf_map_lookup_elem(&rule_tables, &slot);

	return table ? record_at(table, line) : NULL;
}

/* How answers to a client leave, of IPv4 (flow/route.bpf.h): by the link and to the link address that its packets come from. */
struct way_back {
	__u32 until; /* 0: it is not known */
	__be32 local;
	__u16 link[3];
	__u16 interface;
};

/*
 * What a CPU found out last about clients, by their address: each connection is asked for at its SYN, at the end of its
 * handshake and when it is established. An answer counts for the tables that it came from only; one cache line.
 */
struct client_found {
	__u64 source[2];
	__u32 epoch;
	__u16 listener;
	__u16 slot;
	struct fief_client client;
	struct way_back back;
};

_Static_assert(sizeof(struct client_found) == 64, "a cache line");

#define CLIENTS_FOUND 256

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CLIENTS_FOUND);
	__type(key, __u32);
	__type(value, struct client_found);
} clients_found SEC(".maps");

static __always_inline struct client_found *client_place(__u64 high, __u64 low)
{
	__u32 at = hash_mix(high ^ low) & (CLIENTS_FOUND - 1);

	return bpf_map_lookup_elem(&clients_found, &at);
}

static __always_inline bool is_client(const struct client_found *kept, __u64 high, __u64 low)
{
	return kept->source[0] == high && kept->source[1] == low;
}

/* By the source's words, which the caller reads: it knows how they are aligned. */
static __noinline struct fief_client *classify_words(__u32 slot, __u32 listener, __u64 high, __u64 low)
{
	struct fief_control *control = control_get();
	struct client_found *kept;
	struct fief_client *found;

	if (!control)
		return NULL;
	kept = client_place(high, low);
	if (!kept)
		return NULL;
	if (is_client(kept, high, low) && kept->listener == listener && kept->slot == slot &&
	    kept->epoch == control->epoch)
		return &kept->client;
	found = client_at(slot, client_search(slot, listener, high, low));
	if (!found)
		return NULL;
	/* last of all whose tables it is of: what runs in between must not take half of it for whole */
	*(volatile __u32 *)&kept->epoch = control->epoch - 1;
	*(volatile __u32 *)&kept->back.until = 0;
	barrier();
	kept->source[0] = high;
	kept->source[1] = low;
	kept->listener = listener;
	kept->slot = slot;
	kept->client = *found;
	/* once more: it may be that of a client who had the place in between */
	*(volatile __u32 *)&kept->back.until = 0;
	barrier();
	*(volatile __u32 *)&kept->epoch = control->epoch;
	return found;
}

/* The rule for a client of the listener with this index; NULL only while there is no such listener. */
static __always_inline struct fief_client *classify(__u32 slot, __u32 listener, const void *source)
{
	__u64 words[2];

	__builtin_memcpy(words, source, 16);
	return classify_words(slot, listener, words[0], words[1]);
}
