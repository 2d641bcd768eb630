/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Token buckets that the policy names; all CPUs share each. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2097152);
	__type(key, struct fief_bucket_key);
	__type(value, struct fief_bucket);
} buckets SEC(".maps");
