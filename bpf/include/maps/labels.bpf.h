/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What a socket belongs to; cloned from the listener to the accepted socket. Never hand out this map. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct fief_label);
} labels SEC(".maps");
