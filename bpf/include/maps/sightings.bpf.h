/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sightings: what has been seen anywhere, so that most packets need not look for it in tables.
 *
 * Limits: once a client has asked to leave HTTP each answer is looked at, until Fief is taken down.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_sightings);
} sightings SEC(".maps");

static __always_inline struct fief_sightings *sightings_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sightings, &zero);
}
