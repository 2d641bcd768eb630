/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The container table; the loader sets its size. A slot is valid together with its generation. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIEF_DEFAULT_CONTAINERS);
	__type(key, __u32);
	__type(value, struct fief_container);
} containers SEC(".maps");
