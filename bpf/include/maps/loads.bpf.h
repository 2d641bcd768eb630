/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* How loaded each listener is. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_MAX_LISTENERS);
	__type(key, __u32);
	__type(value, struct fief_load);
} loads SEC(".maps");

/* Its level of overload, by its last look. */
static __always_inline __u32 load_level_of(__u32 listener)
{
	struct fief_load *load = bpf_map_lookup_elem(&loads, &listener);

	return load ? load->level : FIEF_ALWAYS;
}
