/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What is watched, the sums by source, and what each CPU needs for it. Nothing reads them while no CPU is told that it is watched. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_watch);
} watches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FIEF_WATCH_SOURCES);
	__type(key, struct fief_charge_source);
	__type(value, struct fief_charge_sum);
} watch_sums SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_watch_room);
} watch_rooms SEC(".maps");

static __always_inline struct fief_watch *watch_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&watches, &zero);
}

static __always_inline struct fief_watch_room *watch_room(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&watch_rooms, &zero);
}
