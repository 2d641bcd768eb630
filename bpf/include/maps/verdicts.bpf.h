/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* How often each verdict fell. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct fief_verdict_key);
	__type(value, __u64);
} verdicts SEC(".maps");
