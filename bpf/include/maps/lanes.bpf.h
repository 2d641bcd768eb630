/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Receive lanes: by container and by receiving interface, each in a network namespace, and which ports and listeners have them.
 * While a policy moves to another namespace, its containers have lanes in both.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct fief_lane_key); /* of a container */
	__type(value, struct fief_lane);
} lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct fief_lane_key); /* of the receiving interface */
	__type(value, __u32);		   /* slot of the container */
} lane_ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32); /* policy slot */
	__type(value, struct fief_lane_ports);
} lane_ports SEC(".maps");

/* At slot * FIEF_MAX_LISTENERS + index: 1 + enum fief_level from which on the lanes are in use; 0: never. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * FIEF_MAX_LISTENERS);
	__type(key, __u32);
	__type(value, __u32);
} lane_levels SEC(".maps");
