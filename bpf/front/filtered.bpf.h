/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Filtered: which listener with a filter a connection reaches (filter.bpf.h).
 *
 *   the longest prefix around the client   its socket
 *   no prefix                              the complement, if that is not about this client
 *   neither, and somebody listens          is refused, as where nobody does
 *   neither, and nobody listens            is not for a filter: the next wider address, or the kernel's own lookup
 *
 * Problem: as long as neither listens, two users can have bound one address (SO_REUSEADDR). One who never does, or does no more, must
 * keep no clients from another one who does.
 * How: only sockets that listen count. Which those are on an address is noted as they begin to (witness.bpf.h).
 * Limits: of more than WITNESSES that listen on an address the others may not be known of once those have ended, and for a moment
 * nobody is who has just begun to listen: the kernel then spreads clients that no filter names over them.
 */
#pragma once

#include "bits.bpf.h"
#include "steer.bpf.h"
#include "maps/filters.bpf.h"
#include "witness.bpf.h"

/* Leads from an address to the next one that a socket for it may be bound to. */
static __always_inline bool address_widen(struct fief_listener_key *key)
{
	__u32 *words = (__u32 *)key->address;

	if (!words[0] && !words[1] && !words[2] && !words[3])
		return false;
	if (!words[0] && !words[1] && words[2] == MAPPED_PREFIX && words[3]) {
		words[3] = 0;
		return true;
	}
	words[0] = words[1] = words[2] = words[3] = 0;
	return true;
}

/*
 * This very socket of the group, not one that the kernel picks. 0: it does not listen, or takes no such connection. The verifier follows a
 * global function once, not for each filter.
 */
__noinline int filter_assign(struct bpf_sk_lookup *ctx, __u32 id)
{
	struct fief_class_key key = {.listener = FIEF_NO_LISTENER, .container = id};
	struct bpf_sock *sk = bpf_map_lookup_elem(&class_listeners, &key);
	long refused = -1;

	if (!sk)
		return 0;
	if (is_listening(sk))
		refused = bpf_sk_assign(ctx, sk, BPF_SK_LOOKUP_F_NO_REUSEPORT);
	bpf_sk_release(sk);
	return !refused;
}

/* Whether somebody listens with a filter on the address. */
static __noinline bool somebody_listens(const struct fief_listener_key *address)
{
	struct fief_filter_key key;
	__u32 *id;
	int i;

	bpf_for (i, 0, WITNESSES) {
		witness_key(&key, address, i);
		id = bpf_map_lookup_elem(&filter_prefixes, &key);
		if (id && filter_listens(*id))
			return true;
	}
	return false;
}

/* Assigns the one with the longest prefix around the client. */
static __noinline bool assign_longest(struct bpf_sk_lookup *ctx, struct fief_filter_set *set,
				      struct fief_filter_key *key, const void *client)
{
	__u32 base = 128, bit, *id;
	__u64 bits = set->lengths[2];
	int i;

	bpf_for (i, 0, 129 + 2) {
		if (!bits) {
			if (!base)
				break;
			base -= 64;
			bits = base ? set->lengths[1] : set->lengths[0];
			continue;
		}
		bit = highest_bit(bits);
		bits &= ~(1ull << (bit & 63));
		key->prefix_length = base + bit;
		mask_address(key->client, client, base + bit);
		id = bpf_map_lookup_elem(&filter_prefixes, key);
		if (id && filter_assign(ctx, *id))
			return true;
	}
	return false;
}

static __always_inline bool rest_serves(struct fief_filter_set *set, const void *client)
{
	__u64 masked[2], except[2];

	mask_address((__u8 *)masked, client, set->rest_excepts.prefix_length);
	__builtin_memcpy(except, set->rest_excepts.address, 16);
	return masked[0] != except[0] || masked[1] != except[1];
}

#define SET_NOBODY -1 /* listens with a filter on the address */

struct filter_asked {
	struct fief_listener_key at;
	__u32 client[4];
};

/* By the filters of one address. A function of its own to the verifier. */
__noinline int set_steer(struct bpf_sk_lookup *ctx, struct filter_asked *asked __arg_nonnull)
{
	struct fief_filter_set *set = bpf_map_lookup_elem(&filter_sets, &asked->at);
	struct fief_filter_key key = {.port = asked->at.port};

	if (!set || (set->ipv6_only && ctx->family == AF_INET))
		return SET_NOBODY;
	__builtin_memcpy(key.address, asked->at.address, 16);
	if (assign_longest(ctx, set, &key, asked->client))
		return SK_PASS;
	if (set->rest && rest_serves(set, asked->client) && filter_assign(ctx, set->rest))
		return SK_PASS;
	return somebody_listens(&asked->at) ? SK_DROP : SET_NOBODY;
}

static __always_inline int steer_filtered(struct bpf_sk_lookup *ctx, const void *address)
{
	struct filter_asked asked = {.at = {.port = ctx->local_port, .slot = FIEF_FILTER_SLOT}};
	int i, verdict;

	__builtin_memcpy(asked.at.address, address, 16);
	lookup_remote_address(ctx, asked.client);
	for (i = 0; i < 3; i++) {
		verdict = set_steer(ctx, &asked);
		if (verdict != SET_NOBODY)
			return verdict == SK_DROP ? SK_DROP : SK_PASS;
		if (!address_widen(&asked.at))
			break;
	}
	return SK_PASS;
}
