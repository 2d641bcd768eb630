/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Verdicts on their way from the gate to the label of the socket that is made. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct fief_flow_key);
	__type(value, struct fief_admitted);
} admitted SEC(".maps");
