/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Processes that belong in another cgroup, for who moves them. When nobody reads, the newest are lost. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} programs SEC(".maps");
