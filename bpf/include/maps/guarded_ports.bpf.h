/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* One bit for each port with a guarded listener: word slot * GUARDED_PORT_WORDS + port / 64. Asked for every packet. */
#pragma once

#define GUARDED_BY_ANY	   0 /* no server has this port: its bit says that some guard does more than watch */

#define GUARDED_PORT_WORDS 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * GUARDED_PORT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} guarded_ports SEC(".maps");
