/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which container a file belongs to, by its inode. The socket that is the label holds the container. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIEF_MAX_FILES);
	__type(key, struct fief_file_key);
	__type(value, struct fief_file);
} labelled_files SEC(".maps");
