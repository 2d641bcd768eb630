/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Counted: what all objects count and read in the same way: verdicts, and refusals over all CPUs. */
#pragma once

#include "maps/controls.bpf.h"
#include "maps/refusals.bpf.h"
#include "maps/verdicts.bpf.h"

/* Counts a verdict `n` times more, on this CPU. */
static __always_inline void verdict_add(const struct fief_verdict_key *key, __u64 n)
{
	__u64 *count = bpf_map_lookup_elem(&verdicts, key);

	if (!count) {
		if (!bpf_map_update_elem(&verdicts, key, &n, BPF_NOEXIST))
			return;
		count = bpf_map_lookup_elem(&verdicts, key); /* another CPU was first */
		if (!count) {
			count_error(FIEF_ERR_VERDICT);
			return;
		}
	}
	*count += n;
}

/* What was refused at a listener so far. */
static __always_inline __u64 refused_sum(__u32 listener)
{
	__u64 refused = 0;
	__u32 cpu;

	bpf_for (cpu, 0, FIEF_MAX_CPUS) {
		struct fief_refusals *here = bpf_map_lookup_percpu_elem(&refusals, &listener, cpu);

		if (!here)
			break;
		refused += here->refused;
	}
	return refused;
}

/* Of these, connections that found the accept queue full. */
static __always_inline __u64 queue_full_sum(__u32 listener)
{
	__u64 full = 0;
	__u32 cpu;

	bpf_for (cpu, 0, FIEF_MAX_CPUS) {
		struct fief_refusals *here = bpf_map_lookup_percpu_elem(&refusals, &listener, cpu);

		if (!here)
			break;
		full += here->queue_full;
	}
	return full;
}
