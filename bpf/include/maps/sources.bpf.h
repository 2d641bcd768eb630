/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Addresses that proved themselves by returning a cookie, and marks that tell at once who is not among them. */
#pragma once

#define SOURCES_MOST	  65536
#define SOURCE_MARK_WORDS 8192 /* a power of two */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SOURCES_MOST);
	__type(key, struct in6_addr);
	__type(value, struct fief_source);
} sources SEC(".maps");

/* 64 marks of either generation; behind them the number of the generation, and how many sources it has. */
struct source_marks {
	__u64 of[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOURCE_MARK_WORDS + 1);
	__type(key, __u32);
	__type(value, struct source_marks);
} source_marks SEC(".maps");
