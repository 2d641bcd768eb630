/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tags: which connections have bytes that were acknowledged.
 *
 * Problem: the bytes of a displaced connection were acknowledged: its client would wait for ever.
 * How: each connection whose bytes were acknowledged has a tag. If it has a tag and no place (halves.bpf.h), it was displaced
 * and is reset.
 * Limits: tags are overwritten by those of 65,536 other connections.
 */
#pragma once

#include "halves.bpf.h"

#define HALF_WAYS 4 /* where a tag may stand */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HALF_TAGS);
	__type(key, __u32);
	__type(value, __u32);
} half_tags SEC(".maps");

/* Where the tag of a connection stands among the HALF_WAYS that it may; NULL: nowhere. */
static __always_inline __u32 *half_tag(const struct half_name *name, __u32 tag)
{
	__u32 i, at, *found;

	for (i = 0; i < HALF_WAYS; i++) {
		at = (name->mark & ~(HALF_WAYS - 1)) + i;
		found = bpf_map_lookup_elem(&half_tags, &at);
		if (found && *found == tag)
			return found;
	}
	return NULL;
}

/* Bytes of the connection have been acknowledged. */
__noinline int half_mark(const struct half_name *name __arg_nonnull)
{
	__u32 at = name->mark, *place;

	if (half_tag(name, name->tag))
		return 0;
	place = half_tag(name, 0);
	if (!place)
		place = bpf_map_lookup_elem(&half_tags, &at);
	if (place)
		*place = name->tag;
	return 0;
}
