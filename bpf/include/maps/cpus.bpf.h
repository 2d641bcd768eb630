/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* One charging state machine per CPU; the loader sets the number. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIEF_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct fief_cpu);
} cpus SEC(".maps");

static __always_inline struct fief_cpu *cpu_at(__u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct fief_cpu *this_cpu(void)
{
	return cpu_at(bpf_get_smp_processor_id());
}
