/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Managed cgroups by id, with the home of their threads. */
#pragma once

#define UNIT_DEPTH 64 /* levels of cgroups that are looked at; the kernel allows more, systemd and pods use ten */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct fief_unit);
} units SEC(".maps");
