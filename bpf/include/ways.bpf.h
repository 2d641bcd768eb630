/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ways: tables in sets of FIEF_WAYS places, with a tag for each place that tells whether a look at it is worth it.
 *
 * Problem: a table of what was used last (LRU hash) forgets whoever a sender of many names pushes out, and costs a miss of
 * the caches also for those who are not in it, as the sources of a flood.
 * How: a keyed hash says which set, and 16 further bits of it are the tag. The tags of a set are half a cache line, and are
 * compared four at a time. Who takes which place is the table's own business.
 * Limits: one in 4,096 of those that are not there has the tag of one that is, and is looked for.
 */
#pragma once

struct way_tags {
	__u16 of[FIEF_WAYS]; /* 0: free */
};

#define WAY_LANES 0x0001000100010001ull

/* The ways whose tag this may be, as bits: a few too many, never one too few. */
static __always_inline __u32 ways_tagged(const struct way_tags *tags, __u16 tag)
{
	const __u64 *words = (const __u64 *)tags->of;
	__u64 want = tag * WAY_LANES, differs, same;
	__u32 ways = 0, i;

	for (i = 0; i < FIEF_WAYS / 4; i++) {
		differs = words[i] ^ want;
		same = (differs - WAY_LANES) & ~differs & WAY_LANES << 15;
		ways |= ((same >> 15 & 1) | (same >> 30 & 2) | (same >> 45 & 4) | (same >> 60 & 8)) << 4 * i;
	}
	return ways;
}

/* Never that of a free place. */
static __always_inline __u16 way_tag(__u64 hash)
{
	__u16 tag = hash;

	return tag ? tag : 1;
}
