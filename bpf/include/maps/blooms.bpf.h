/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Bloom filters of request patterns and of prefixes, and the words of regions, which spare looks into the rule tables. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1048576);
	__type(key, __u32);
	__type(value, __u64);
} blooms SEC(".maps");
