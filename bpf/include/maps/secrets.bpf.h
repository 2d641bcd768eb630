/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The keys of the gate. Never handed out. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_secret);
} secrets SEC(".maps");
