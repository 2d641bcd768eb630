/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The container table; the loader sets its size. A slot is valid together with its generation. */
#pragma once

#include "controls.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIEF_DEFAULT_CONTAINERS);
	__type(key, __u32);
	__type(value, struct fief_container);
} containers SEC(".maps");

static __always_inline struct fief_container *container_at(__u32 id)
{
	return bpf_map_lookup_elem(&containers, &id);
}

/* The slot of a reference, or NULL if it is stale. An ended container is found too: see container_alive. */
static __always_inline struct fief_container *container_get(struct fief_ref ref)
{
	struct fief_container *c = container_at(ref.id);

	if (!c || c->generation != ref.generation || c->state == FIEF_FREE)
		return NULL;
	return c;
}

static __always_inline bool container_alive(struct fief_ref ref)
{
	struct fief_container *c = container_get(ref);

	return c && c->state == FIEF_ALIVE;
}

static __always_inline struct fief_ref ref_of(__u32 id)
{
	struct fief_container *c = container_at(id);
	struct fief_ref ref = {id, c ? c->generation : 0};

	return ref;
}

/* For who holds the container already by another reference. */
static __always_inline void container_hold(struct fief_container *c, __u64 unit)
{
	__sync_fetch_and_add(&c->refs, unit);
}

/* As one word: a global function takes no record by value. */
static __always_inline __u64 ref_word(struct fief_ref ref)
{
	return (__u64)ref.generation << 32 | ref.id;
}

static __always_inline struct fief_ref ref_read(__u64 word)
{
	return (struct fief_ref){word, word >> 32};
}

static __always_inline bool same_ref(struct fief_ref a, struct fief_ref b)
{
	return a.id == b.id && a.generation == b.generation;
}

/* The attributes in force: a policy's container has one set for each policy slot. */
static __always_inline struct fief_attributes *attributes_of(struct fief_container *c)
{
	struct fief_control *control;

	if (c->flags & FIEF_CONTAINER_SLOTS) {
		control = control_get();
		if (control && control->slot & 1)
			return &c->attributes[1];
	}
	return &c->attributes[0];
}
