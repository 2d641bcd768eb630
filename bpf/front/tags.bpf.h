/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tags: which connections have bytes that were acknowledged.
 *
 * Problem: the bytes of a displaced connection were acknowledged: its client would wait for ever.
 * How: each connection whose bytes were acknowledged has a tag. If it has a tag and no place (halves.bpf.h), it was displaced
 * and is reset.
 * Limits: a tag is overwritten by eight later ones of its set, which as a rule takes some 65,536 other connections, and hardly ever fewer
 * than 20,000. Without it the client waits until its own time is over.
 */
#pragma once

#include "halves.bpf.h"

#define HALF_WAYS 8 /* where a tag may stand, the newest first */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HALF_TAGS);
	__type(key, __u32);
	__type(value, __u32);
} half_tags SEC(".maps");

static __always_inline __u32 *half_way(const struct half_name *name, __u32 way)
{
	__u32 at = (name->mark & ~(HALF_WAYS - 1)) + way;

	return bpf_map_lookup_elem(&half_tags, &at);
}

/* Has the connection a tag? */
static __always_inline bool half_tagged(const struct half_name *name)
{
	__u32 i, *found;

	for (i = 0; i < HALF_WAYS; i++) {
		found = half_way(name, i);
		if (found && *found == name->tag)
			return true;
	}
	return false;
}
