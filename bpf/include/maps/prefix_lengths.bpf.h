/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which prefix lengths the client rules of a listener use, by slot and index of the listener. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3 * FIEF_MAX_LISTENERS);
	__type(key, __u32);
	__type(value, struct fief_prefix_lengths);
} prefix_lengths SEC(".maps");
