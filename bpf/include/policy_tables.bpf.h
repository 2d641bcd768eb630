/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Policy tables: for each policy slot an array of as many records as its policy needs. It is made and filled before the
 * slot's element points to it (inner.rs, with the same flags), and freed when another takes its place.
 *
 * Values of an array that can be mapped begin at a page, so that records of 64 bytes are cache lines; others begin
 * anywhere. Sizes instead of types, of which clang leaves the definition out for a map within a map.
 */
#pragma once

#define POLICY_TABLES(name, record)                                                                                    \
	struct name##_of_policy {                                                                                      \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                                      \
		__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);                                                   \
		__uint(max_entries, 1);                                                                                \
		__uint(key_size, sizeof(__u32));                                                                       \
		__uint(value_size, sizeof(record));                                                                    \
	};                                                                                                             \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                                              \
		__uint(max_entries, 2);                                                                                \
		__type(key, __u32);                                                                                    \
		__array(values, struct name##_of_policy);                                                              \
	} name SEC(".maps")
