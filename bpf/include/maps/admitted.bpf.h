/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Verdicts on their way from the gate to the label of the socket that is made. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct fief_flow_key);
	__type(value, struct fief_admitted);
} admitted SEC(".maps");

/*
 * The verdict upon a connection whose first byte is `begin`, once: whoever makes the socket's label takes it. NULL: there is
 * none. It stays readable for the caller.
 */
static __always_inline struct fief_admitted *admitted_spend(const struct fief_flow_key *key, __u32 begin)
{
	struct fief_admitted *entry = bpf_map_lookup_elem(&admitted, key);

	if (!entry || entry->spent || entry->begin != begin)
		return NULL;
	entry->spent = 1;
	return entry;
}
