/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Sources that proved themselves by returning a cookie, and tags that tell at once who is not among them. */
#pragma once

#include "ways.bpf.h"

/* Sets of IPv4 addresses, then as many of IPv6 /64s. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* so that it begins with a cache line */
	__uint(max_entries, 2 * FIEF_SOURCE_SETS);
	__type(key, __u32);
	__type(value, struct way_tags);
} source_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * FIEF_SOURCE_SETS * FIEF_WAYS);
	__type(key, __u32);
	__type(value, struct fief_source);
} sources SEC(".maps");
