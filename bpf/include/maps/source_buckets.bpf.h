/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Theoretical arrival times of the buckets "per source". */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct fief_source_bucket_key);
	__type(value, __u64);
} source_buckets SEC(".maps");
