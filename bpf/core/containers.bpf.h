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
 * The parent in the entry of a user who has none (user/<uid>), as ref_word: whether the entry goes with the user's last container. One
 * that has gone may be another user's a moment later, so whoever is to write a parent into it says before that it stays.
 */
#define USER_GOES  0ull
#define USER_STAYS (1ull << 32)
#define USER_ENDS  (2ull << 32) /* somebody is about to remove it */

/* Whether the entry stays from here on, until a sweep. */
static __always_inline bool user_stays(__u32 uid, struct fief_user *u)
{
	__u64 was = __sync_val_compare_and_swap((__u64 *)&u->parent, USER_GOES, USER_STAYS);

	return was != USER_ENDS && user_get(uid) == u;
}

/* One container more; false: the entry went at this moment. */
static __always_inline bool user_take(__u32 uid, struct fief_user *u)
{
	if (__sync_fetch_and_add(&u->containers, 1) & FIEF_USER_GONE)
		return false;
	if (user_get(uid) == u)
		return true;
	__sync_fetch_and_add(&u->containers, -1); /* another user's by now */
	return false;
}

/*
 * One container less. A user without any must not keep a place in the table (include/quota.bpf.h). The last count becomes the mark in
 * one step: in an entry that counts nothing, the mark could be set when it is another user's.
 */
static __always_inline void user_give(__u32 uid, struct fief_user *u)
{
	__u64 *parent = (__u64 *)&u->parent;
	bool last = false, done = false;
	unsigned long flags;
	int i;

	irq_save(&flags); /* the user makes none between the mark and the end of the entry */
	bpf_for (i, 0, CAS_TRIES) {
		__u32 old = *(volatile __u32 *)&u->containers;

		last = old == 1 && !u->quota && __sync_val_compare_and_swap(parent, USER_GOES, USER_ENDS) == USER_GOES;
		done = __sync_val_compare_and_swap(&u->containers, old, last ? FIEF_USER_GONE : old - 1) == old;
		if (done)
			break;
		if (last) /* not the last any more */
			__sync_val_compare_and_swap(parent, USER_ENDS, USER_GOES);
	}
	if (!done)
		__sync_fetch_and_add(&u->containers, -1);
	else if (last)
		bpf_map_delete_elem(&users, &uid);
	irq_restore(&flags);
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
		else if (!user_take(owner, u))
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
