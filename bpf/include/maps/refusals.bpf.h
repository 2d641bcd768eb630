/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What was refused at each listener, for the levels of overload and the notices. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIEF_MAX_LISTENERS);
	__type(key, __u32);
	__type(value, struct fief_refusals);
} refusals SEC(".maps");
