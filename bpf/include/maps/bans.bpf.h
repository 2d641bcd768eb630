/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Prefixes that the operator has shut out, and how many there are: without any, nobody looks for one. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIEF_BANS);
	__type(key, struct fief_ban_key);
	__type(value, struct fief_ban);
} bans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ban_counts SEC(".maps");
