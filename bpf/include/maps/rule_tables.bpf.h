/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Prefixes of clients, patterns of requests and what the rules say of them: a table for each policy slot, of as many lines
 * as its policy needs. It is made and filled before the slot's element points to it, and freed when another takes its
 * place.
 */
#pragma once

/*
 * Values of an array that can be mapped begin at a page, so that a line is one of the cache; others begin anywhere. Sizes
 * instead of types, of which clang leaves the definition out for a map within a map.
 */
struct rule_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct fief_line));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct rule_table);
} rule_tables SEC(".maps");
