/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Attributes and places in the tree: the state that must stay consistent over several containers.
 *
 * Problem: shares of siblings must fit into the parent's, and parents must not form a loop, while other callers change both.
 * How: one lock for the whole tree, taken by a bounded number of tries; reads take none. Interrupts are off meanwhile, where the kernel
 * lets programs do that: a thread that is preempted with it may have no budget to go on.
 * Limits: if the lock is contended for long, the caller gets -EAGAIN and tries again.
 */
#pragma once

#include "create.bpf.h"

#define LOCK_TRIES 4096
#define PPM	   1000000
#define WEIGHT_MAX 10000

static __always_inline struct fief_control *tree_lock(unsigned long *flags)
{
	struct fief_control *control = control_get();
	int i;

	if (!control)
		return NULL;
	irq_save(flags);
	bpf_for (i, 0, LOCK_TRIES) {
		if (!__sync_val_compare_and_swap(&control->tree_lock, 0, 1))
			return control;
	}
	irq_restore(flags);
	count_error(FIEF_ERR_LOCK);
	return NULL;
}

static __always_inline void tree_unlock(struct fief_control *control, unsigned long *flags)
{
	__sync_val_compare_and_swap(&control->tree_lock, 1, 0);
	irq_restore(flags);
}

/* What a parent can still grant. The root owns the machine; "user" grants nothing. */
static __always_inline __u32 grantable(struct fief_ref parent)
{
	struct fief_container *p = container_get(parent);
	struct fief_attributes *a;
	__u32 has, given;

	if (!p)
		return 0;
	a = attributes_of(p);
	has = parent.id == FIEF_ROOT ? PPM : a->share_ppm;
	given = a->reserved_ppm + p->reserved_ppm;
	return has > given ? has - given : 0;
}

/* Nobody is promised what its own limit takes away. 0: there is no limit. */
static __always_inline bool is_beyond(__u32 share_ppm, __u32 limit_ppm)
{
	return limit_ppm && share_ppm > limit_ppm;
}

static __noinline int limit_set(struct fief_ref ref, __u32 ppm)
{
	struct fief_container *c = container_get(ref);
	struct fief_control *control;
	unsigned long flags;
	int err = 0;

	control = tree_lock(&flags);
	if (!control)
		return -EAGAIN;
	if (!c || c->state != FIEF_ALIVE)
		err = -ESTALE;
	else if (is_beyond(c->attributes[0].share_ppm, ppm))
		err = -EBUSY;
	else
		c->attributes[0].limit_ppm = ppm;
	tree_unlock(control, &flags);
	return err;
}

static __noinline int share_set(struct fief_ref ref, __u32 ppm)
{
	struct fief_container *c = container_get(ref), *p;
	struct fief_control *control;
	unsigned long flags;
	int err = 0;
	__u32 old;

	control = tree_lock(&flags);
	if (!control)
		return -EAGAIN;
	if (!c || c->state != FIEF_ALIVE) {
		err = -ESTALE;
		goto out;
	}
	old = c->attributes[0].share_ppm;
	p = container_get(c->parent);
	if (ppm < c->reserved_ppm || is_beyond(ppm, c->attributes[0].limit_ppm) ||
	    (ppm > old && (!p || ppm - old > grantable(c->parent)))) {
		err = -EBUSY;
		goto out;
	}
	c->attributes[0].share_ppm = ppm;
	if (p)
		__sync_fetch_and_add(&p->reserved_ppm, ppm - old);
out:
	tree_unlock(control, &flags);
	return err;
}

/* A policy's containers belong to the policy; everything else to the holder of the right. */
static __always_inline int attribute_set(struct fief_ref ref, struct fief_set_attribute *set)
{
	struct fief_container *c = container_get(ref);
	__u64 value = set->value;

	if (!c)
		return -ESTALE;
	if (ref.id < FIEF_FIRST_ID || c->flags & FIEF_CONTAINER_POLICY)
		return -EPERM;
	switch (set->attribute) {
	case FIEF_ATTR_SHARE:
		return value > PPM ? -EINVAL : share_set(ref, value);
	case FIEF_ATTR_LIMIT:
		return value > PPM ? -EINVAL : limit_set(ref, value);
	case FIEF_ATTR_WEIGHT:
		if (value < 1 || value > WEIGHT_MAX)
			return -EINVAL;
		c->attributes[0].weight = value;
		return 0;
	case FIEF_ATTR_PRIORITY:
		if (value > 65535)
			return -EINVAL;
		c->attributes[0].priority = value;
		return 0;
	case FIEF_ATTR_MEMORY_MAX:
		c->attributes[0].memory_max = value;
		return 0;
	case FIEF_ATTR_NET_WEIGHT:
		if (value < 1 || value > WEIGHT_MAX)
			return -EINVAL;
		c->attributes[0].net_weight = value;
		return 0;
	case FIEF_ATTR_NET_MAX:
		c->attributes[0].net_max = value;
		return 0;
	case FIEF_ATTR_POLICY:
		if (value >= FIEF_POLICIES)
			return -EINVAL;
		c->attributes[0].policy = value;
		return 0;
	case FIEF_ATTR_PERIOD:
		if (value && (value < FIEF_PERIOD_LEAST || value > FIEF_PERIOD_MOST))
			return -EINVAL;
		c->attributes[0].period_us = value;
		return 0;
	case FIEF_ATTR_BUDGET:
		if (value > FIEF_PERIOD_MOST)
			return -EINVAL;
		c->attributes[0].budget_us = value;
		return 0;
	case FIEF_ATTR_PASS_UP:
		c->attributes[0].pass_up = !!value;
		return 0;
	case FIEF_ATTR_DESCENDANTS_MAX:
		if (value > FIEF_MAX_CONTAINERS)
			return -EINVAL;
		c->attributes[0].descendants_max = value;
		return 0;
	}
	return -EINVAL;
}

/*
 * Moves a container, with all below it, to another parent. No chain outgrows FIEF_MAX_DEPTH. `policy`: of those that policies
 * name, of which each policy grants the shares by itself, and has them where it says whatever room there is.
 */
static __noinline int container_move(struct fief_ref ref, struct fief_ref parent, bool policy)
{
	struct fief_container *c = container_get(ref), *p = container_get(parent), *old;
	struct fief_ref from;
	struct fief_control *control;
	unsigned long flags;
	__u32 share, moved;
	int err = 0;

	if (ref.id < FIEF_FIRST_ID || !c || !(c->flags & FIEF_CONTAINER_POLICY) == policy)
		return -EPERM;
	control = tree_lock(&flags);
	if (!control)
		return -EAGAIN;
	if (!p || c->state != FIEF_ALIVE || p->state != FIEF_ALIVE) {
		err = -ESTALE;
		goto out;
	}
	from = c->parent;
	if (same_ref(from, parent))
		goto out;
	share = policy ? 0 : c->attributes[0].share_ppm;
	if (container_below(parent, ref) || (share && share > grantable(parent))) {
		err = -EBUSY;
		goto out;
	}
	if (container_depth(parent) + 1 + c->height > FIEF_MAX_DEPTH) {
		err = -EOPNOTSUPP;
		goto out;
	}
	moved = c->descendants + 1;
	err = policy ? 0 : container_room(parent, moved, ref);
	if (err)
		goto out;
	if (!child_hold(parent)) {
		err = -ESTALE;
		goto out;
	}
	__sync_fetch_and_add(&p->reserved_ppm, share);
	descendants_count(parent, moved);
	descendants_count(from, -(int)moved);
	c->parent = parent;
	height_raise(parent, c->height + 1);
	old = container_get(from);
	if (old) {
		__sync_fetch_and_add(&old->reserved_ppm, -share);
		child_put(from);
	}
out:
	tree_unlock(control, &flags);
	return err;
}

static __always_inline int container_adopt(struct fief_ref ref, struct fief_ref parent)
{
	return container_move(ref, parent, false);
}
