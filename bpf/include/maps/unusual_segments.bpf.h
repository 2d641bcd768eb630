/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Largest segments that clients take, where that is not the usual and the kernel answers them. A SYN is all that fills a
 * table, so clients that have proven themselves have one apart from those that may be anybody.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct fief_flow_key);
	__type(value, __u16);
} unusual_segments SEC(".maps"), proven_segments SEC(".maps");
