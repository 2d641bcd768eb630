/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Buckets "per source", of all rules and both families. */
#pragma once

#include "ways.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* so that it begins with a cache line */
	__uint(max_entries, FIEF_SOURCE_SETS);
	__type(key, __u32);
	__type(value, struct way_tags);
} source_bucket_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_SOURCE_SETS *FIEF_WAYS);
	__type(key, __u32);
	__type(value, struct fief_source_bucket);
} source_buckets SEC(".maps");
