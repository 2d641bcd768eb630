/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Asked: what a user asks of the control plane for itself, as by the folders of `fief mount`.
 *
 * Problem: the thread that runs here is root's, whoever asks. What it makes must count for the user that asks, and only what this user
 * has rights to may change.
 * How: the call names the thread that asks, which waits for the answer, and the user as which it asks. Credentials and home are read
 * of that thread, and the functions that serve its own calls do the work (create, attributes, caller). It may make containers in its
 * home, or outside of every unit in user/<uid>, and below that in its own; its own are those that this user made so. Of those it
 * changes only the ones that are not out of its home.
 * Limits: if the kernel gives up the answer (somebody aborts the mount), the thread may go on or end before it is looked at, and its
 * number be another one's. That one has to be of the same user in all its ids, else nothing is done: what is made counts for
 * the user all the same, in a place where the user's other thread may make it itself.
 */
#pragma once

#include "admin.bpf.h"

struct asked_by {
	__u32 owner;
	__u32 rights; /* to its home */
	struct fief_ref home;
};

/* Of a thread that does not run now; what was changed lately, by its operator, may not be seen yet. */
static __always_inline struct fief_ref home_of(struct task_struct *p)
{
	struct fief_task *v = record_of(p);
	struct fief_unit *unit;

	if (v && v->made == RECORD_MADE)
		return v->home;
	unit = unit_of(cgroup_of(p));
	return unit ? unit->home : ref_of(FIEF_ROOT);
}

static __always_inline __u32 rights_of(struct task_struct *p)
{
	struct fief_task *v = record_of(p);

	return v && v->made == RECORD_MADE ? home_rights(v) : FIEF_RIGHT_USE | FIEF_RIGHT_READ | FIEF_RIGHT_CHILDREN;
}

/*
 * A thread that acts for somebody else, as a set-user-ID program or a file server, does not say for whom it asks: the library
 * takes its real id, and files its effective one. An operator does not ask here.
 */
static __always_inline int owner_find(struct task_struct *p, __u32 uid, __u32 *owner)
{
	const struct cred *real = p->real_cred, *cred = p->cred;

	if (real->uid.val != uid || real->euid.val != uid || real->suid.val != uid || cred->uid.val != uid ||
	    cred->fsuid.val != uid)
		return -EACCES;
	*owner = owner_of(real);
	return *owner >= FIEF_OWNER_USER_PARENT ? -EACCES : 0;
}

static __always_inline bool in_reach(const struct asked_by *by, struct fief_ref ref)
{
	return by->home.id == FIEF_ROOT || container_below(ref, by->home);
}

/*
 * Holds the slot of a container that this user made and that the thread may change; -ESTALE, -EACCES. As a child does: a handle
 * that only a running program knows of, a sweep would take for lost. The container may end meanwhile.
 */
static __always_inline int own_hold(const struct asked_by *by, struct fief_ref ref)
{
	struct fief_container *c = container_get(ref);

	if (!c || ref.id < FIEF_FIRST_ID)
		return c ? -EACCES : -ESTALE;
	if (!child_hold(ref))
		return -ESTALE;
	if (c->flags & FIEF_CONTAINER_FOLDER && c->owner_uid == by->owner && in_reach(by, ref))
		return 0;
	child_put(ref);
	return -EACCES;
}

/*
 * Keeps a container alive while a thread is bound to it. As a thread does: their references are swept only where no handle is
 * left, and a home has one as long as the thread that asks is there.
 */
static __always_inline int goal_hold(struct fief_ref ref)
{
	struct fief_container *c = container_get(ref);

	if (!c)
		return -ESTALE;
	if (ref.id < FIEF_FIRST_ID)
		return 0;
	return live_hold(c, ref, FIEF_THREAD) ? 0 : -ESTALE;
}

/* Where the thread may make containers. */
static __always_inline int place_find(const struct asked_by *by, struct fief_ref *place)
{
	if (!(by->rights & FIEF_RIGHT_CHILDREN))
		return -EACCES;
	*place = by->home.id == FIEF_ROOT ? user_place(by->owner) : by->home;
	return place->id == FIEF_NO_ID ? -EACCES : 0;
}

static __always_inline int asked_place(struct fief_admin *a, const struct asked_by *by)
{
	struct fief_ref parent = ref_of(FIEF_ROOT);
	int err;

	if (by->home.id != FIEF_ROOT)
		return -EACCES;
	err = parent_for(by->owner, &parent);
	if (!err)
		a->container = parent;
	return err;
}

static __always_inline int asked_create(struct fief_admin *a, const struct asked_by *by)
{
	struct fief_ref parent = a->container, place;
	int err = place_find(by, &place);
	bool holds = false;

	if (err)
		return err;
	if (!same_ref(parent, place)) {
		err = own_hold(by, parent);
		if (err)
			return err;
		holds = true;
		err = container_below(parent, place) ? 0 : -EACCES;
	}
	if (!err)
		err = named_make(a, parent, by->owner, FIEF_CONTAINER_FOLDER);
	if (holds)
		child_put(parent);
	return err;
}

/* Of one that nobody else holds and nothing is below. */
static __always_inline int asked_end(struct fief_admin *a, const struct asked_by *by)
{
	struct fief_ref ref = a->container;
	struct fief_container *c;
	int err = own_hold(by, ref);
	__u64 refs;

	if (err)
		return err;
	c = container_at(ref.id);
	if (!c)
		return -ESTALE;
	refs = *(volatile __u64 *)&c->refs;
	if (refs / FIEF_CHILD > 1) /* the one that was just taken; another may be of a call */
		err = c->descendants ? -ENOTEMPTY : -EBUSY;
	else if ((refs & FIEF_HANDLES_MASK) > 1 || c->members) /* its maker's */
		err = -EBUSY;
	else if (!(__sync_fetch_and_and(&c->flags, ~FIEF_CONTAINER_FOLDER) & FIEF_CONTAINER_FOLDER))
		err = -ESTALE; /* it is being ended already */
	else
		container_put(ref.id, FIEF_HANDLE);
	child_put(ref);
	return err;
}

static __always_inline int asked_set(struct fief_admin *a, const struct asked_by *by)
{
	struct fief_set_attribute set = {.attribute = a->slot, .value = a->value};
	struct fief_ref ref = a->container;
	int err = own_hold(by, ref);

	if (err)
		return err;
	err = attribute_set(ref, &set);
	child_put(ref);
	return err;
}

/* A thread outside of every unit has no record until it is first asked for one, as one that was passed a descriptor. */
static __always_inline int record_ensure(struct task_struct *p)
{
	struct fief_unit *unit;

	if (p->flags & PF_KTHREAD)
		return -EPERM;
	unit = unit_of(cgroup_of(p));
	return task_adopt(p, unit ? unit->home : ref_of(FIEF_ROOT), unit ? unit->task_flags : 0, false);
}

/* What a thread is bound with: all that its home gives where it comes home; never the machine's, where it has another home. */
static __always_inline int rights_at_home(struct task_struct *target, struct fief_ref home, __u32 *rights)
{
	*rights = FIEF_RIGHT_USE | FIEF_RIGHT_READ;
	if (same_ref(home_of(target), home))
		*rights = rights_of(target);
	else if (home.id == FIEF_ROOT)
		return -EPERM;
	return 0;
}

/* Another thread is bound by the rules of FIEF_BIND: to what the user made, or to the home of the thread that asks. */
static __always_inline int asked_bind(struct fief_admin *a, const struct asked_by *by, struct task_struct *asker)
{
	__u32 rights = FIEF_RIGHTS_ALL;
	struct fief_ref to = a->container;
	bool goes_home = same_ref(to, by->home);
	struct task_struct *target = thread_of(a->pid);
	int err = target ? 0 : -ESRCH;

	if (err)
		return err;
	if (!may_signal(asker, target) || !container_below(home_of(target), by->home))
		err = -EPERM;
	else if (!is_meant(target, a))
		err = -ESRCH;
	else if (goes_home)
		err = rights_at_home(target, to, &rights);
	else
		err = own_hold(by, to);
	if (!err) {
		err = goal_hold(to);
		if (!err) {
			err = record_ensure(target);
			if (!err)
				err = request_send(asker, by->home, target, to, rights);
			container_put(to.id, FIEF_THREAD);
		}
		if (!goes_home)
			child_put(to);
	}
	bpf_task_release(target);
	return err;
}

static __always_inline int admin_asked_for(struct fief_admin *a)
{
	struct task_struct *asker = thread_of(a->asker.thread);
	struct asked_by by = {};
	int err;

	if (!asker)
		return -EACCES;
	err = asker->flags & PF_KTHREAD ? -EACCES : owner_find(asker, a->asker.uid, &by.owner);
	if (!err) {
		by.home = home_of(asker);
		by.rights = rights_of(asker);
		switch (a->asker.ask) {
		case FIEF_ASK_PLACE:
			err = asked_place(a, &by);
			break;
		case FIEF_ASK_CREATE:
			err = asked_create(a, &by);
			break;
		case FIEF_ASK_END:
			err = asked_end(a, &by);
			break;
		case FIEF_ASK_SET:
			err = asked_set(a, &by);
			break;
		case FIEF_ASK_BIND:
			err = asked_bind(a, &by, asker);
			break;
		default:
			err = -EINVAL;
		}
	}
	bpf_task_release(asker);
	return err;
}
