/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The end of a container: references go, and with the last of them the container.
 *
 * Problem: descriptors, bound threads, labels and children end on several CPUs at once, also by kill -9. Each end must be seen
 * exactly once, and the container's usage must not be lost.
 * How: one word counts every kind of reference (abi.h draws it). The step that takes the last holder away puts a child
 * reference in its place, so that nobody frees the slot while the end is under way. The caller that brings the word to 0 frees
 * the slot, and then releases an ended parent whose last child that was.
 * Limits: FIEF_MAX_DEPTH levels; a slot stays taken while descendants live (their limits lead through it).
 */
#pragma once

#include "charge.bpf.h"

/*
 * At the end of a container: takes its lines out of every CPU's cache. Nobody charges it any more, but for a
 * packet that is on its way up; what that adds goes to the heir with the line.
 */
static __noinline int usage_collect(struct fief_container *c, __u32 id)
{
	__u32 cached, cpu;

	if (!c || !c->cached)
		return 0;
	cached = c->cached;
	__sync_fetch_and_add(&c->flushes_begun, 1);
	bpf_for (cpu, 0, cpu_count) {
		struct fief_cache_slot *slot;
		struct fief_cpu *cs;

		if (!(cached & 1u << (cpu & 31)))
			continue;
		cs = cpu_at(cpu);
		if (!cs)
			break;
		slot = &cs->cache[id & (FIEF_CACHE_SLOTS - 1)];
		if (slot->container.id == id && slot->container.generation == c->generation)
			slot_empty(slot, &c->usage);
	}
	__sync_fetch_and_add(&c->flushes_done, 1);
	return 0;
}

/* What an ended container used, on every CPU, is its heir's. */
static __noinline int usage_inherit(struct fief_container *c, __u32 id)
{
	struct fief_container *heir = container_at(container_heir(c));

	usage_collect(c, id);
	if (heir && heir != c)
		usage_move(&c->usage, &heir->usage);
	return 0;
}

/* The word after a reference is gone. */
static __always_inline __u64 refs_without(__u64 old, __u64 unit)
{
	__u64 new = old - unit;

	if (unit < FIEF_CHILD && (old & FIEF_HOLDERS_MASK) == unit)
		new += FIEF_CHILD; /* stands for the end that is now ours to do */
	return new;
}

/* Others change the word too: try again, a bounded number of times. */
static __noinline __u64 refs_drop_contended(struct fief_container *c, __u64 unit)
{
	__u64 old = c->refs, seen;
	bool done = false;
	int i;

	bpf_for (i, 0, CAS_TRIES) {
		seen = __sync_val_compare_and_swap(&c->refs, old, refs_without(old, unit));
		done = seen == old;
		if (done)
			break;
		old = seen;
	}
	if (done)
		return old;
	count_error(FIEF_ERR_LOCK);
	return ~0ull;
}

/* Takes one reference away; returns the word as it was. */
static __always_inline __u64 refs_drop(struct fief_container *c, __u64 unit)
{
	__u64 old = c->refs;

	if (__sync_val_compare_and_swap(&c->refs, old, refs_without(old, unit)) == old)
		return old;
	return refs_drop_contended(c, unit);
}

/* The slot's last use is gone: hand it back and let go of the parent, which may be its last use in turn. */
static __noinline int container_free(__u32 id)
{
	int i;
	bpf_for (i, 0, FIEF_MAX_DEPTH + 1) {
		struct fief_container *c = container_at(id), *p;
		struct fief_ref parent;
		__u32 share = 0;
		__u64 old;

		if (!c || id < FIEF_FIRST_ID)
			break;
		parent = c->parent;
		if (!(c->flags & FIEF_CONTAINER_POLICY))
			share = c->attributes[0].share_ppm;
		descendants_count(parent, -1);
		owner_count(c->owner_uid, -1);
		c->state = FIEF_FREE;
		c->name[0] = 0;
		if (bpf_map_push_elem(&free_slots, &id, 0))
			count_error(FIEF_ERR_TABLE_FULL);
		p = container_at(parent.id);
		/* not before: descendants that outlive it have their shares within its own */
		if (p)
			__sync_fetch_and_add(&p->reserved_ppm, -share);
		if (!p || parent.id < FIEF_FIRST_ID)
			break;
		old = refs_drop(p, FIEF_CHILD);
		if (old != FIEF_CHILD)
			break;
		id = parent.id;
	}
	return 0;
}

static __always_inline bool kept_swap_out(struct fief_cpu *cs, __u64 word)
{
	__u64 *kept = &cs->kept[(__u32)word & (FIEF_KEPT - 1)];

	return *(volatile __u64 *)kept == word && __sync_bool_compare_and_swap(kept, word, 0);
}

/*
 * Lets go of what CPUs keep of a container: first of this one's, where the closing thread has often worked before. Whether that were
 * the last holders.
 */
static __noinline bool kept_recall(struct fief_ref ref)
{
	struct fief_container *c = container_at(ref.id);
	__u64 word = ref_word(ref);
	bool last = false;
	__u32 turn;

	if (!c)
		return false;
	bpf_for (turn, 0, cpu_count + 1) {
		struct fief_cpu *cs = turn ? cpu_at(turn - 1) : this_cpu();

		if (!cs)
			break;
		if (!kept_swap_out(cs, word))
			continue;
		last = (refs_drop(c, FIEF_THREAD) & FIEF_HOLDERS_MASK) == FIEF_THREAD;
		if (last)
			break;
	}
	return last;
}

/* A function of its own to the verifier, which then follows it once and not from each place that lets go of something. */
__noinline int container_put(__u32 id, __u64 unit)
{
	struct fief_container *c = container_at(id);
	struct fief_ref ref;
	__u64 others;

	if (!c || id < FIEF_FIRST_ID)
		return 0;
	ref = (struct fief_ref){id, c->generation};
	others = (refs_drop(c, unit) & FIEF_HOLDERS_MASK) - unit;
	/* threads without a handle: some of them may have left already */
	if (others && (unit != FIEF_HANDLE || others & FIEF_HANDLES_MASK || !kept_recall(ref)))
		return 0;
	/* that was the last holder */
	c->state = FIEF_ENDED;
	usage_inherit(c, id);
	if (refs_drop(c, FIEF_CHILD) == FIEF_CHILD)
		container_free(id);
	return 0;
}

/* Lets a child go. */
static __always_inline void child_put(struct fief_ref parent)
{
	struct fief_container *p = container_at(parent.id);

	if (p && parent.id >= FIEF_FIRST_ID && refs_drop(p, FIEF_CHILD) == FIEF_CHILD)
		container_free(parent.id);
}

/* Takes a child reference of a parent that may end, and its slot be another container's, at the same moment. */
static __always_inline bool child_hold(struct fief_ref parent)
{
	struct fief_container *p = container_at(parent.id);

	if (!p)
		return false;
	if (parent.id < FIEF_FIRST_ID)
		return true; /* those never end */
	if (!container_hold_live(p, FIEF_CHILD))
		return false;
	if (p->generation == parent.generation)
		return true;
	child_put(parent);
	return false;
}

/* Takes a reference of a container that may end, and its slot, `c`, be another container's, at the same moment. */
static __always_inline bool live_hold(struct fief_container *c, struct fief_ref ref, __u64 unit)
{
	if (!container_hold_live(c, unit))
		return false;
	/* its slot cannot be another's from here on, but may have become that before */
	if (c->generation == ref.generation)
		return true;
	container_put(ref.id, unit);
	return false;
}
