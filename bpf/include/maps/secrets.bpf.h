/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The keys of the door. Never handed out. */
#pragma once

#include "mix.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_secret);
} secrets SEC(".maps");

/* Hash of an address, or part of one, that nobody without the keys foresees. */
static __always_inline __u64 address_hash(const struct fief_secret *secret, const __u64 *words)
{
	return hash_mix((words[0] ^ secret->pattern[0]) * (secret->pattern[1] | 1) ^ words[1]);
}

/* Hash of a flow that nobody without the keys foresees, never 0; 0: there are no keys. */
static __always_inline __u64 flow_hash(const struct fief_flow_key *key)
{
	__u64 words[sizeof(*key) / 8], hash;
	struct fief_secret *secret;
	__u32 zero = 0;

	secret = bpf_map_lookup_elem(&secrets, &zero);
	if (!secret)
		return 0;
	__builtin_memcpy(words, key, sizeof(words));
	hash = hash_mix((address_hash(secret, words) ^ words[2]) * HASH_GOLDEN ^ words[3]);
	return hash_mix(hash ^ words[4] ^ secret->pattern[1]) | 1;
}
