/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which packets without a connection the door has let through a moment ago: places of passed.bpf.h, in pairs. */
#pragma once

#define PASSED_PLACES 65536

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PASSED_PLACES);
	__type(key, __u32);
	__type(value, __u64);
} passed SEC(".maps");
