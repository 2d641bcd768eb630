/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Labels of files that each user has, against the quota. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u32);
} file_users SEC(".maps");
