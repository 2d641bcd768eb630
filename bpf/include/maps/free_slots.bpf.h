/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Free container slots, oldest first, so that a stale reference meets a reused slot as late as possible. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, FIEF_DEFAULT_CONTAINERS);
	__type(value, __u32);
} free_slots SEC(".maps");
