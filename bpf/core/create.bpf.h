/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Create: a new container, and whether there is room for it.
 *
 * Problem: quotas of a user and of every unit above must hold while several callers create at once. A new container must not
 * inherit anything from the slot's last one.
 * How: the new container is counted first, then checked, and taken back if there is no room. It gets the slot that is free
 * longest. The last part of the table is the operator's: users together never get it, so a policy finds room whatever they
 * hold.
 * Limits: two callers that ask for the last place at once can both be refused. A user with a parent of its own (user/<uid>) keeps its
 * place in the table of users until a policy is applied.
 */
#pragma once

#include "containers.bpf.h"

#define USER_TRIES 4 /* while the user's last container ends at the same time */

/* Every container on the way up must have room for so many more; `inside` counts in those above it already. */
static __noinline int container_room(struct fief_ref up, __u32 more, struct fief_ref inside)
{
	int i, err = 0;

	bpf_for (i, 0, FIEF_MAX_DEPTH + 1) {
		struct fief_attributes *a;
		struct fief_container *c;

		if (up.id == FIEF_ROOT)
			break;
		c = container_get(up);
		if (!c)
			break;
		a = attributes_of(c);
		if (a->descendants_max && c->descendants + more > a->descendants_max && !container_below(inside, up)) {
			err = -EDQUOT;
			break;
		}
		up = c->parent;
	}
	return err;
}

/* The part of the table that all users together may fill. */
static __always_inline __u32 users_part(const struct fief_control *control)
{
	__u32 all = control->containers - FIEF_FIRST_ID;

	return all - all / FIEF_RESERVED_PART;
}

/* `taken`: the one that is asked for is counted already. */
static __always_inline int owner_has_room(__u32 owner, __u32 taken)
{
	struct fief_control *control = control_get();
	struct fief_user *u, fresh = {};
	long err = 0;
	__u32 most;

	if (owner == FIEF_OWNER_OPERATOR || !control)
		return 0;
	if (control->user_containers + 1 - taken > users_part(control))
		return -ENFILE;
	if (owner == FIEF_OWNER_USER_PARENT)
		return 0;
	u = user_get(owner);
	if (!u) {
		err = bpf_map_update_elem(&users, &owner, &fresh, BPF_NOEXIST);
		u = user_get(owner);
	}
	if (!u) /* the table of users is full, or the entry goes at this moment */
		return err && err != -EEXIST ? -ENFILE : -EAGAIN;
	most = control->user_quota;
	return most && u->containers + 1 - taken > most ? -EDQUOT : 0;
}

/* The same for a caller that is to write a parent into the user's entry, which stays from here on. */
static __always_inline int owner_room(__u32 owner, __u32 taken)
{
	int err = owner_has_room(owner, taken);
	struct fief_user *u = user_get(owner);

	if (err)
		return err;
	return u && user_stays(owner, u) ? 0 : -EAGAIN;
}

/* Counts what is to be made for its owner, where there is room. */
static __always_inline int owner_enter(__u32 owner)
{
	int err = -EAGAIN, i;

	bpf_for (i, 0, USER_TRIES) {
		err = owner_has_room(owner, 0);
		if (!err)
			err = owner_count(owner, 1);
		if (err != -EAGAIN)
			break;
	}
	return err;
}

/* Whether a name that comes from user space may have it: what is printed of ASCII, but no slash. */
static __always_inline bool name_may_have(__u8 byte)
{
	return byte >= ' ' && byte <= '~' && byte != '/';
}

/*
 * A child of `below`, with one handle, which is the maker's (FIEF_CONTAINER_*; 0: the caller stores it) as soon as anybody sees
 * it. Global, as container_put. Errors: -EDQUOT quota of the user or of a unit above,
 * -ENFILE table full, or as full as users may make it, -EOPNOTSUPP too deep, -ESTALE parent has ended, -EAGAIN the user's
 * entry was removed at this moment.
 */
__noinline int container_create(const struct fief_ref *below __arg_nonnull, __u32 owner, __u32 maker,
				struct fief_ref *made __arg_nonnull)
{
	struct fief_ref nobody = {FIEF_NO_ID, 0}, parent = *below;
	struct fief_container *p = container_get(parent), *c;
	__u32 id;
	int err;

	made->id = FIEF_NO_ID;
	if (!p || p->state != FIEF_ALIVE)
		return -ESTALE;
	if (container_depth(parent) >= FIEF_MAX_DEPTH)
		return -EOPNOTSUPP;
	/* counted before it is asked for, so that two at once do not both have the last one */
	err = owner_enter(owner);
	if (err)
		return err;
	/* the parent may end at this moment, and its slot be another container's: it is held before anything is made */
	if (!child_hold(parent)) {
		owner_count(owner, -1);
		return -ESTALE;
	}
	descendants_count(parent, 1);
	/* what programs made must not keep the operator's policy from being applied */
	err = maker & FIEF_CONTAINER_POLICY ? 0 : container_room(parent, 0, nobody);
	if (!err)
		err = owner_has_room(owner, 1);
	if (!err && bpf_map_pop_elem(&free_slots, &id)) {
		count_error(FIEF_ERR_TABLE_FULL);
		err = -ENFILE;
	}
	c = err ? NULL : container_at(id);
	if (!c) {
		descendants_count(parent, -1);
		owner_count(owner, -1);
		child_put(parent);
		return err ? err : -ENFILE;
	}
	/* what a CPU's cache brought after the end belongs to the old generation */
	struct fief_container *retired = container_at(FIEF_RETIRED);
	if (retired)
		usage_move(&c->usage, &retired->usage);
	__u32 generation = c->generation + 1;
	c->generation = generation ? generation : 1;
	c->refs = FIEF_HANDLE;
	c->parent = parent;
	c->height = 0;
	height_raise(parent, 1);
	c->owner_uid = owner;
	c->flags = maker;
	c->descendants = 0;
	c->cached = 0;
	c->members = 0;
	c->sockets = 0;
	c->files = 0;
	c->created_ns = bpf_ktime_get_ns();
	c->reserved_ppm = 0;
	c->charged_own_ns = 0;
	c->charged_ns = 0;
	c->unlimited_ns = 0;
	c->received_half_ns = 0;
	c->received_all_ns = 0;
	c->received_part_ns = 0;
	c->received_own_ns = 0;
	c->held_ns = 0;
	c->discarded = 0;
	__builtin_memset(c->attributes, 0, sizeof(c->attributes));
	c->attributes[0].weight = 100;
	c->attributes[0].priority = 100;
	c->attributes[0].net_weight = 100;
	__builtin_memset(c->name, 0, sizeof(c->name));
	barrier();
	c->state = FIEF_ALIVE;
	made->id = id;
	made->generation = c->generation;
	return 0;
}
