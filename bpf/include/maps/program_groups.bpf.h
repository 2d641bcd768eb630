/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The cgroups of containers that the policy names for programs, where cgroups divide the CPU. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct fief_program_group);
} program_groups SEC(".maps");
