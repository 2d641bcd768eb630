/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Token buckets that the policy names, of each policy slot as many as it needs; all CPUs share each. As rule_tables. */
#pragma once

struct policy_buckets {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct fief_bucket));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct policy_buckets);
} bucket_tables SEC(".maps");
