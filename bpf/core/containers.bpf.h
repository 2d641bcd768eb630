/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The life of a container: hold, release, end, reuse.
 *
 * Problem: descriptors, bound threads, labels and children end on several CPUs at once, also by kill -9. Each end must be seen
 * exactly once, and the container's usage must not be lost.
 * How: one word counts every kind of reference (abi.h draws it). The step that takes the last holder away puts a child
 * reference in its place, so that nobody frees the slot while the end is under way. The caller that brings the word to 0 frees
 * the slot, and then releases an ended parent whose last child that was.
 * Limits: FIEF_MAX_DEPTH levels; a slot stays taken while descendants live (their limits lead through it).
 */
#pragma once

#include "maps/controls.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/free_slots.bpf.h"
#include "maps/users.bpf.h"

#define CAS_TRIES 64

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

static __always_inline bool same_ref(struct fief_ref a, struct fief_ref b)
{
	return a.id == b.id && a.generation == b.generation;
}

/* The attributes in force: a policy's container has one set for each policy slot. */
static __always_inline struct fief_attributes *attributes_of(struct fief_container *c)
{
	struct fief_control *control;

	if (c->flags & FIEF_CONTAINER_POLICY) {
		control = control_get();
		if (control && control->slot & 1)
			return &c->attributes[1];
	}
	return &c->attributes[0];
}

/* Walks the chain of parents, ended ones too. */
static __noinline bool container_below(struct fief_ref ref, struct fief_ref top)
{
	bool found = false;
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH + 1) {
		struct fief_container *c;

		found = same_ref(ref, top);
		if (found || ref.id < FIEF_FIRST_ID)
			break;
		c = container_get(ref);
		if (!c)
			break;
		ref = c->parent;
	}
	return found;
}

/* Whom the usage of an ended container goes to. */
static __noinline __u32 container_heir(struct fief_container *c)
{
	__u32 heir = FIEF_RETIRED;
	struct fief_ref up;
	int i;

	if (!attributes_of(c)->pass_up)
		return heir;
	up = c->parent;
	bpf_for (i, 0, FIEF_MAX_DEPTH) {
		struct fief_container *p = container_get(up);

		if (!p || up.id == FIEF_ROOT)
			break;
		if (p->state == FIEF_ALIVE) {
			heir = up.id;
			break;
		}
		up = p->parent;
	}
	return heir;
}

static __always_inline void usage_move(struct fief_usage *from, struct fief_usage *to)
{
	__u64 *f = (__u64 *)from, *t = (__u64 *)to;

	for (int i = 0; i < FIEF_USAGE_COUNTERS; i++) {
		__u64 n = f[i];

		if (!n)
			continue;
		__sync_fetch_and_add(&t[i], n);
		__sync_fetch_and_add(&f[i], -(n));
	}
}

static __noinline int usage_collect(struct fief_container *c, __u32 id);
static __noinline bool kept_recall(struct fief_ref ref);

/* What an ended container used, on every CPU, is its heir's. */
static __noinline int usage_inherit(struct fief_container *c, __u32 id)
{
	struct fief_container *heir = container_at(container_heir(c));

	usage_collect(c, id);
	if (heir && heir != c)
		usage_move(&c->usage, &heir->usage);
	return 0;
}

/* The user's entry; NULL: there is none, or it is about to go. */
static __always_inline struct fief_user *user_get(__u32 uid)
{
	struct fief_user *u = bpf_map_lookup_elem(&users, &uid);

	return u && !(*(volatile __u32 *)&u->containers & FIEF_USER_GONE) ? u : NULL;
}

/* Counts for the owner of a container; -EAGAIN: its entry went at this moment. */
static __noinline int owner_count(__u32 owner, int by)
{
	struct fief_control *control = control_get();
	struct fief_user *u;

	if (owner == FIEF_OWNER_OPERATOR)
		return 0;
	if (owner != FIEF_OWNER_USER_PARENT) {
		u = user_get(owner);
		if (!u)
			return -EAGAIN;
		if (__sync_fetch_and_add(&u->containers, by) & FIEF_USER_GONE)
			return -EAGAIN;
	}
	if (control)
		__sync_fetch_and_add(&control->user_containers, by);
	return 0;
}

/* Levels below the root. */
static __noinline __u32 container_depth(struct fief_ref ref)
{
	__u32 depth = 0;
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH + 1) {
		struct fief_container *c;

		if (ref.id < FIEF_FIRST_ID)
			break;
		depth = i + 1; /* what the verifier must not count by itself */
		c = container_get(ref);
		if (!c)
			break;
		ref = c->parent;
	}
	return depth;
}

/* Something `levels` high stands below `up` now. */
static __noinline int height_raise(struct fief_ref up, __u32 levels)
{
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH + 1) {
		struct fief_container *c;

		if (up.id < FIEF_FIRST_ID)
			break;
		c = container_get(up);
		if (!c || c->height >= levels + i)
			break;
		c->height = levels + i;
		up = c->parent;
	}
	return 0;
}

static __noinline int descendants_count(struct fief_ref up, int by)
{
	int i;
	bpf_for (i, 0, FIEF_MAX_DEPTH) {
		struct fief_container *c;

		if (up.id == FIEF_ROOT)
			break;
		c = container_get(up);
		if (!c)
			break;
		__sync_fetch_and_add(&c->descendants, by);
		up = c->parent;
	}
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

/* For where interrupts are off: there some kernels (6.14) allow no call of a global function. */
static __noinline int container_put_here(__u32 id, __u64 unit)
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

/* A function of its own to the verifier, which then follows it once and not from each place that lets go of something. */
__noinline int container_put(__u32 id, __u64 unit)
{
	return container_put_here(id, unit);
}

/* For who holds the container already by another reference. */
static __always_inline void container_hold(struct fief_container *c, __u64 unit)
{
	__sync_fetch_and_add(&c->refs, unit);
}

/* For a caller that found it by a stored reference: fails once the last holder is gone. */
static __always_inline bool container_hold_live(struct fief_container *c, __u64 unit)
{
	__u64 old = c->refs, seen;
	bool held = false;
	int i;

	bpf_for (i, 0, CAS_TRIES) {
		if (!(old & FIEF_HOLDERS_MASK) || c->state != FIEF_ALIVE)
			break;
		seen = __sync_val_compare_and_swap(&c->refs, old, old + unit);
		held = seen == old;
		if (held)
			break;
		old = seen;
	}
	return held;
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
