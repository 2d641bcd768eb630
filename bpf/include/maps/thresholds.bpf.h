/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* When a listener is busy or overloaded, by policy slot. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct fief_thresholds);
} thresholds SEC(".maps");
