/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Containers: the tree of them, and references that keep one.
 *
 * One word counts every kind of reference (abi.h draws it); end.bpf.h is how they go.
 */
#pragma once

#include "maps/containers.bpf.h"
#include "maps/controls.bpf.h"
#include "maps/free_slots.bpf.h"
#include "maps/users.bpf.h"
#include "quota.bpf.h"

#define CAS_TRIES 64

/* Walks the chain of parents, ended ones too. */
static __noinline __attribute__((unused)) bool container_below(struct fief_ref ref, struct fief_ref top)
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

/*
 * Whom the usage of an ended container goes to. It goes past a parent that has ended only if that one passes its own up too. Else the
 * order of their ends would decide, since what is left to a parent that lives goes on with that one's usage.
 */
static __noinline __u32 container_heir(struct fief_container *c)
{
	__u32 heir = FIEF_RETIRED;
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH) {
		struct fief_ref up = c->parent;

		if (!attributes_of(c)->pass_up || up.id == FIEF_ROOT)
			break;
		c = container_get(up);
		if (!c)
			break;
		if (c->state == FIEF_ALIVE) {
			heir = up.id;
			break;
		}
	}
	return heir;
}

static __always_inline void usage_move(struct fief_usage *from, struct fief_usage *to)
{
	__u64 *f = (__u64 *)from, *t = (__u64 *)to;

	for (int i = 0; i < FIEF_USAGE_COUNTERS; i++) {
		__u64 n = f[i]; /* 0 too: a branch for each is followed from everywhere that a container may end */

		__sync_fetch_and_add(&t[i], n);
		__sync_fetch_and_add(&f[i], -n);
	}
}

/* The user's entry; NULL: there is none, or it is about to go. */
static __always_inline struct fief_user *user_get(__u32 uid)
{
	struct fief_user *u = bpf_map_lookup_elem(&users, &uid);

	return u && !(*(volatile __u32 *)&u->containers & FIEF_USER_GONE) ? u : NULL;
}

/*
 * The parent of a user who has none (user/<uid>), as ref_word, keeps the entry or not (ENTRY_*). One that has gone may be another user's a
 * moment later, so whoever is to write a parent into it says before that it stays: whether it does from here on, until a sweep.
 */
static __always_inline bool user_stays(__u32 uid, struct fief_user *u)
{
	__u64 was = __sync_val_compare_and_swap((__u64 *)&u->parent, ENTRY_GOES, ENTRY_STAYS);

	return was != ENTRY_ENDS && user_get(uid) == u;
}

/*
 * Marks the entry of a user without containers. One that is marked already, with callers that came too late counted beside the mark, could not
 * be removed by who marked it.
 */
static __always_inline bool user_goes(struct fief_user *u)
{
	__u32 had = __sync_val_compare_and_swap(&u->containers, 0, FIEF_USER_GONE);

	return !had || had & FIEF_USER_GONE;
}

/* user/<uid>; FIEF_NO_ID: the user has none. */
static __always_inline struct fief_ref user_place(__u32 uid)
{
	struct fief_ref none = {FIEF_NO_ID, 0}, place;
	struct fief_user *u = user_get(uid);

	if (!u)
		return none;
	place = ref_read(*(volatile __u64 *)&u->parent);
	/* an entry without a parent may have gone, and be another user's by now, with that user's */
	return place.id >= FIEF_FIRST_ID && user_get(uid) == u ? place : none;
}

/* One container less. */
static __always_inline void user_give(__u32 uid, struct fief_user *u)
{
	entry_give(&users, &uid, &u->containers, (__u64 *)&u->parent);
}

/* Counts one more or one less for the owner of a container; -EAGAIN: its entry went at this moment. */
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
		if (by < 0)
			user_give(owner, u);
		else if (entry_take(&users, &owner, u, &u->containers) < 0)
			return -EAGAIN;
	}
	if (control)
		__sync_fetch_and_add(&control->user_containers, by);
	return 0;
}

/* Levels below the root. */
static __noinline __attribute__((unused)) __u32 container_depth(struct fief_ref ref)
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
static __noinline __attribute__((unused)) int height_raise(struct fief_ref up, __u32 levels)
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
