/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* One record: the policy slot in force, switches, counters of failures. Flipping its slot swaps the policy.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_control);
} controls SEC(".maps");

static __always_inline struct fief_control *control_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&controls, &zero);
}

static __always_inline void count_error(enum fief_error which)
{
	struct fief_control *control = control_get();

	if (control)
		__sync_fetch_and_add(&control->errors[which & 7], 1);
}
