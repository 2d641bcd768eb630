/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Containers that each unprivileged user holds. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct fief_user);
} users SEC(".maps");
