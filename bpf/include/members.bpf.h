/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Members: which threads and processes are bound to a container, as a thread counts itself. */
#pragma once

#include "maps/containers.bpf.h"

/* What a thread adds to the members of its container. */
static __always_inline __u64 members_by(bool leads)
{
	return FIEF_MEMBER_THREAD + (leads ? FIEF_MEMBER_PROCESS : 0);
}

/*
 * Counts a thread as a member of the container it is bound to. Not at each rebind, only when the thread leaves its CPU
 * or asks: a count may lag, a bind must not cost.
 */
static __always_inline void member_settle(struct fief_task *t, struct task_struct *p, bool ends)
{
	bool leads = p->pid == p->tgid; /* exec can make it the leader */
	struct fief_container *c;

	if (!ends && same_ref(t->counted, t->binding) && t->leads == leads)
		return;
	c = container_get(t->counted);
	if (c)
		__sync_fetch_and_sub(&c->members, members_by(t->leads));
	t->counted = ends ? (struct fief_ref){FIEF_NO_ID, 0} : t->binding;
	t->leads = leads;
	c = container_get(t->counted);
	if (c)
		__sync_fetch_and_add(&c->members, members_by(leads));
}
