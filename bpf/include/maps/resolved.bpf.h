/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The rate at which the door asks for unknown neighbours: one bucket for the machine, which an upgrade leaves as full as it was. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64); /* arrival_ns, as in struct fief_bucket */
} resolved SEC(".maps");

static __always_inline __u64 *resolved_arrival(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&resolved, &zero);
}
