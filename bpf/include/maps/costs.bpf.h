/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What clients cost, and what each CPU needs for it. Nothing reads them while no CPU is told that clients are counted. */
#pragma once

/* Sets of clients, then as many of networks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * FIEF_COST_SETS);
	__type(key, __u32);
	__type(value, struct fief_cost_set);
} costs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_cost_control);
} cost_controls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_cost_room);
} cost_rooms SEC(".maps");

static __always_inline struct fief_cost_control *cost_control(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cost_controls, &zero);
}

static __always_inline struct fief_cost_room *cost_room(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cost_rooms, &zero);
}
