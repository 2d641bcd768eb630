/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Prefixes that isolation or penalties of a listener do not hold for, of both policy slots. */
#pragma once

#include "flow/packet.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIEF_EXCEPTS);
	__type(key, struct fief_except_key);
	__type(value, __u32); /* 1 */
} excepts SEC(".maps");

/* A function of its own to the verifier, which follows it once. */
__noinline int except_find(const struct packet *p __arg_nonnull, __u32 slot, __u32 listener, __u32 from)
{
	struct fief_except_key key = {
	    .bits = FIEF_EXCEPT_BITS + 128,
	    .slot = slot,
	    .from = from,
	    .listener = listener,
	};

	__builtin_memcpy(key.address, p->source, 16);
	return bpf_map_lookup_elem(&excepts, &key) != NULL;
}
