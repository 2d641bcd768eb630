/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What a CPU found out last about listeners of the policy (found.bpf.h), for the door and the lanes. */
#pragma once

#define LISTENERS_FOUND 64

struct listener_found {
	__u64 address[2];
	__u64 live_until_ns;
	__u32 slot;
	__u32 epoch;
	__u32 index; /* as in struct fief_listener */
	__u32 serve;
	__u16 port;
	__u16 pad[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LISTENERS_FOUND);
	__type(key, __u32);
	__type(value, struct listener_found);
} listeners_found SEC(".maps");
