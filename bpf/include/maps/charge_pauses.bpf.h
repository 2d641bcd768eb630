/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Whether no CPU time is charged, while nobody needs it (core/pause.bpf.h). */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} charge_pauses SEC(".maps");

/* What an installation was never told is no pause: programs of versions without one charge always. */
static __always_inline bool charge_paused(void)
{
	__u32 zero = 0, *paused = bpf_map_lookup_elem(&charge_pauses, &zero);

	return paused && *(volatile __u32 *)paused;
}
