/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which container a descriptor stands for. Not cloned to accepted sockets. Never hand out this map. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fief_descriptor);
} descriptors SEC(".maps");
