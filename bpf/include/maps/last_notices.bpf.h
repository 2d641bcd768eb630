/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The last notice of each listener, for the server behind it (FIEF_DROPS). Two at one moment may mix. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_MAX_LISTENERS);
	__type(key, __u32);
	__type(value, struct fief_notice);
} last_notices SEC(".maps");
