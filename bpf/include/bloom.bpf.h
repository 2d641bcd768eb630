/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Bloom: whether a key may be in a big table, before anybody looks.
 *
 * Problem: a look into a table of a million entries misses the cache two or three times, and most looks find nothing.
 * How: one word of a filter holds three bits of each key (blocked Bloom filter, Putze, Sanders, Singler 2007). The loads
 * for several keys do not wait for each other, since their branches nearly all go the same way.
 * Limits: about one in a hundred keys that are not there gets through, at 16 bits a key.
 */
#pragma once

#include "mix.bpf.h"
#include "maps/blooms.bpf.h"

static __always_inline bool bloom_holds(__u64 first, __u64 mask, __u64 hash)
{
	__u64 bits = 1ull << (hash >> 40 & 63) | 1ull << (hash >> 46 & 63) | 1ull << (hash >> 52 & 63), *word;
	__u32 at = first + (hash & mask);

	word = bpf_map_lookup_elem(&blooms, &at);
	return word && (*word & bits) == bits;
}
