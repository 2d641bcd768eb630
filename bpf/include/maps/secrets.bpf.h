/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The keys of the door. Never handed out. */
#pragma once

#include "mix.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_secret);
} secrets SEC(".maps");

/* Hash of an address, or part of one, that nobody without the keys foresees. */
static __always_inline __u64 address_hash(const struct fief_secret *secret, const __u64 *words)
{
	return hash_mix((words[0] ^ secret->pattern[0]) * (secret->pattern[1] | 1) ^ words[1]);
}
