/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Addresses with client classes, of both policy slots, and those of filtered listeners. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 3 * FIEF_MAX_LISTENERS);
	__type(key, struct fief_listener_key);
	__type(value, struct fief_listener);
} listeners SEC(".maps");
