/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Prefixes that isolation or penalties of a listener do not hold for, of both policy slots. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIEF_EXCEPTS);
	__type(key, struct fief_except_key);
	__type(value, __u32); /* 1 */
} excepts SEC(".maps");
