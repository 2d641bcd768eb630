/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* First bytes of connections whose header is not complete yet. LRU: who sends half of one and waits gives way first. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, struct fief_flow_key);
	__type(value, struct fief_pending);
} pending SEC(".maps");
