/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which file a socket is the label of. Never hand out this map. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fief_file_key);
} file_labels SEC(".maps");
