/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Addresses that proved themselves by returning a cookie. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct in6_addr);
	__type(value, struct fief_source);
} sources SEC(".maps");
