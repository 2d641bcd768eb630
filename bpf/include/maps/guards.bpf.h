/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What guards a listener, at slot * FIEF_MAX_LISTENERS + index. Listeners without one are let through. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2 * FIEF_MAX_LISTENERS);
	__type(key, __u32);
	__type(value, struct fief_guard);
} guards SEC(".maps");
