/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Flows that the door refused by an answer of its own, so that it can acknowledge how they end. When it was, in ns. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct fief_flow_key);
	__type(value, __u64);
} answered SEC(".maps");
