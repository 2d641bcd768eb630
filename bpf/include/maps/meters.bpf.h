/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* SYNs of unproven addresses by prefix and listener: two places for each, found by a keyed hash. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* a reader looks for the few that are isolated in place */
	__uint(max_entries, FIEF_METERS);
	__type(key, __u32);
	__type(value, struct fief_meter);
} meters SEC(".maps");
