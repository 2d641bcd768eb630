/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The rings of threads: where each lies in its thread's memory, and which containers it may name. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_RINGS);
	__type(key, __u32);
	__type(value, struct fief_ring);
} rings SEC(".maps");

/* A place that the verifier knows to be one: a compiler that has seen the bounds checked leaves out a mask alone, and the verifier of
 * 6.12 has not kept what was checked */
static __always_inline __u32 place_bounded(__u32 place)
{
	barrier_var(place);
	return place & (FIEF_RING_PLACES - 1);
}

/* By number + 1, and generation: the entry may be another thread's by now. */
static __always_inline struct fief_ring *ring_at(__u32 number, __u32 generation)
{
	__u32 index = number - 1;
	struct fief_ring *ring = bpf_map_lookup_elem(&rings, &index);

	return ring && ring->generation == generation ? ring : NULL;
}

/* Whom a place names. */
static __always_inline struct fief_ref ring_place(const struct fief_cpu *cs, const struct fief_ring *ring, __u32 place)
{
	return place == FIEF_RING_HOME ? cs->task.home : ring->places[place_bounded(place)].container;
}
