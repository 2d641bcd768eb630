/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Prefixes of client addresses with their class. A hash for each prefix length in use: an LPM trie is eight
 * times slower on cold random addresses. A million for each slot. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2097152);
	__type(key, struct fief_client_key);
	__type(value, struct fief_client);
} clients SEC(".maps");
