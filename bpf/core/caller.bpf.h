/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The caller: requests of a thread for itself or for another thread.
 *
 * Problem: a call must change the caller's own record, on whichever CPU it runs, and no other thread's.
 * How: the hook runs on the caller's CPU without migrating; with interrupts off the working copy there is the caller's. Another
 * thread gets a request in its storage.
 * Limits: before 6.13 an unmanaged thread cannot call, since its record cannot be made here.
 */
#pragma once

#include "labels.bpf.h"
#include "switch.bpf.h"
#include "maps/descriptors.bpf.h"

/* The CPU of the thread that calls, in a cgroup's hook. Without task storage there, a switch that was missed is not made up for. */
static __always_inline struct fief_cpu *caller_cpu(void)
{
	return task_storage_in_cgroup ? this_thread() : this_cpu();
}

/* The caller's record as its CPU holds it; made for a stranger that was passed a descriptor. */
static __always_inline struct fief_cpu *caller_find(void)
{
	struct fief_cpu *cs = caller_cpu();

	if (!cs)
		return NULL;
	if (!cs->has_task) {
		struct task_struct *p = bpf_get_current_task_btf();
		unsigned long flags;

		if (!task_storage_in_cgroup)
			return NULL;
		struct fief_unit *unit = unit_of(cgroup_of(p));
		if (task_adopt(p, unit ? unit->home : ref_of(FIEF_ROOT), unit ? unit->task_flags : 0, false))
			return NULL;
		struct fief_task *v = bpf_task_storage_get(&tasks, p, 0, 0);
		if (!v)
			return NULL;
		cs = record_hold(&flags);
		if (cs) {
			/* a softirq may have taken it over since, and the thread have changed it */
			if (!cs->has_task) {
				charge_until(cs, bpf_ktime_get_ns());
				record_load(cs, v);
				cs->current_ = v->binding;
			}
			cs->refresh = 0;
		}
		record_let_go(cs, &flags);
	}
	return cs;
}

/* Whether there is one, which is this CPU's then. The verifier walks a global function once, wherever it is called. */
__noinline int caller_ready(void)
{
	return caller_find() ? 0 : -ESRCH;
}

static __always_inline struct fief_cpu *caller(void)
{
	return caller_ready() ? NULL : this_cpu();
}

/* Where its CPU missed the switch to it (unseen.bpf.h), the record there is another thread's, and its unit's home is the caller's. */
static __always_inline struct fief_ref caller_home(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_ref home = {FIEF_NO_ID, 0};
	struct fief_unit *unit;
	struct fief_cpu *cs;
	unsigned long flags;
	bool known;

	cs = record_hold(&flags);
	known = cs && cs->has_task && cs->running == p->pid;
	if (known)
		home = cs->task.home;
	record_let_go(cs, &flags);
	unit = known ? NULL : unit_of(cgroup_of(p));
	if (unit)
		home = unit->home;
	return home;
}

/* The caller's record is on its CPU, or was made now and is there at the second try. */
static __always_inline bool bind_try(struct fief_descriptor *d, struct task_struct *p, __u64 now, struct fief_ref *was,
				     struct fief_ref *home)
{
	__s32 pid = p->pid;
	struct fief_cpu *cs;
	unsigned long flags;
	bool bound = false;

	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->running == pid) {
		*was = task_rebind(cs, p, d->container, d->rights, false, 0, now);
		cs->task.flags |= FIEF_TASK_EXPLICIT;
		*home = cs->task.home;
		bound = true;
	}
	record_let_go(cs, &flags);
	return bound;
}

/* The work of binding is the new container's, whatever it takes. */
static __always_inline int bind_self(struct fief_descriptor *d)
{
	__u64 now = bpf_ktime_get_ns();
	struct fief_container *c = container_get(d->container);
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_ref was = {FIEF_NO_ID, 0}, home = {FIEF_NO_ID, 0};

	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_USE))
		return -EPERM;
	binding_hold(c, d->container);
	if (!bind_try(d, p, now, &was, &home) && (!caller() || !bind_try(d, p, now, &was, &home))) {
		container_put(d->container.id, FIEF_THREAD);
		return -ESRCH;
	}
	if (same_ref(d->container, home))
		container_put(home.id, FIEF_THREAD);
	binding_keep(was, home);
	return 0;
}

static __always_inline int unbind_self(void)
{
	struct fief_cpu *cs = caller();
	struct fief_ref was, home, left[FIEF_NEST];
	unsigned long flags;

	if (!cs)
		return -ESRCH;
	cs = record_hold(&flags);
	if (!cs || !cs->has_task) {
		record_let_go(cs, &flags);
		return -ESRCH;
	}
	home = cs->task.home;
	was = task_rebind(cs, bpf_get_current_task_btf(), home, home_rights(&cs->task), false, 0, bpf_ktime_get_ns());
	cs->task.flags &= ~FIEF_TASK_EXPLICIT;
	/* what was entered is left too */
	for (int i = 0; i < FIEF_NEST; i++)
		left[i] = i < cs->task.nested ? cs->task.nest[i].container : home;
	cs->task.nested = 0;
	record_let_go(cs, &flags);
	binding_keep(was, home);
	for (int i = 0; i < FIEF_NEST; i++)
		binding_keep(left[i], home);
	return 0;
}

/* As bind_self; what the thread was bound to keeps its reference on the nest. */
static __always_inline int enter(struct fief_descriptor *d)
{
	struct fief_container *c = container_get(d->container);
	struct fief_cpu *cs = caller();
	struct fief_ref home;
	struct fief_nest was;
	unsigned long flags;
	int err = -EBUSY;
	__u32 at;

	if (!cs)
		return -ESRCH;
	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_USE))
		return -EPERM;
	home = cs->task.home;
	if (!same_ref(d->container, home))
		binding_hold(c, d->container);
	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->task.nested < FIEF_NEST && same_ref(cs->task.home, home)) {
		was.rights = cs->task.rights;
		was.flags = cs->task.flags & FIEF_TASK_EXPLICIT;
		was.container =
		    task_rebind(cs, bpf_get_current_task_btf(), d->container, d->rights, false, 0, bpf_ktime_get_ns());
		cs->task.flags |= FIEF_TASK_EXPLICIT;
		at = cs->task.nested;
		if (at < FIEF_NEST) {
			cs->task.nest[at] = was;
			cs->task.nested = at + 1;
			err = 0;
		}
	}
	record_let_go(cs, &flags);
	if (err)
		binding_keep(d->container, home);
	return err;
}

static __always_inline int leave(void)
{
	struct fief_cpu *cs = caller();
	struct fief_ref was = {FIEF_NO_ID, 0}, home = {FIEF_NO_ID, 0};
	unsigned long flags;
	__u32 at;

	if (!cs)
		return -ESRCH;
	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->task.nested) {
		home = cs->task.home;
		at = cs->task.nested - 1;
		if (at < FIEF_NEST) {
			struct fief_nest *to = &cs->task.nest[at];

			was = task_rebind(cs, bpf_get_current_task_btf(), to->container, to->rights, false, 0,
					  bpf_ktime_get_ns());
			cs->task.flags &= ~FIEF_TASK_EXPLICIT;
			cs->task.flags |= to->flags;
			cs->task.nested = at;
		}
	}
	record_let_go(cs, &flags);
	if (was.id == FIEF_NO_ID)
		return -EINVAL;
	binding_keep(was, home);
	return 0;
}

/* What the caller worked for until now is charged, and no longer what it is scheduled for. */
static __always_inline int scheduler_binding_reset(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = caller();
	unsigned long flags;
	int err = -ESRCH;

	if (!cs)
		return err;
	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->running == p->pid) {
		charge_until(cs, bpf_ktime_get_ns());
		served_forget(cs);
		err = 0;
	}
	record_let_go(cs, &flags);
	return err;
}

/* kernel/signal.c kill_ok_by_cred, and CAP_KILL of the caller */
static __always_inline bool may_signal(struct task_struct *p, struct task_struct *target)
{
	const struct cred *mine = p->cred, *its = target->real_cred;

	if (mine->euid.val == its->suid.val || mine->euid.val == its->uid.val || mine->uid.val == its->suid.val ||
	    mine->uid.val == its->uid.val)
		return true;
	return mine->user_ns->level == 0 && (mine->cap_effective.val & (1ull << CAP_KILL));
}

/* The thread of this number in the caller's PID namespace, to be released; NULL: there is none, or the kernel cannot say. */
static __always_inline struct task_struct *thread_of(__s32 number)
{
	struct task_struct *p = bpf_get_current_task_btf();

	if (bpf_ksym_exists(bpf_task_from_vpid))
		return bpf_task_from_vpid(number);
	if (bpf_ksym_exists(bpf_task_from_pid) && !BPF_CORE_READ(p, thread_pid, level))
		return bpf_task_from_pid(number);
	return NULL;
}

/*
 * Leaves a request with another thread, taken at its next boundary (L2), for one that may signal it and whose home is above the
 * thread's. The caller holds the container.
 */
static __always_inline int request_send(struct task_struct *by, struct fief_ref home, struct task_struct *target,
					struct fief_ref to, __u32 rights)
{
	struct fief_container *c = container_get(to);
	struct fief_cpu *its;
	struct fief_task *v;
	int err;

	if (!c)
		return -ESTALE;
	if (!may_signal(by, target))
		return -EPERM;
	v = bpf_task_storage_get(&tasks, target, 0, 0);
	if (!v)
		return -ESRCH;
	if (!container_below(v->home, home))
		return -EPERM;
	container_hold(c, FIEF_THREAD);
	err = request_leave(v, to, rights, 0);
	if (err)
		return err;
	its = cpu_at(target->thread_info.cpu);
	if (its)
		its->refresh = 1;
	return 0;
}

static __always_inline int bind_other(struct fief_descriptor *d, __s32 number)
{
	struct task_struct *target, *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = caller();
	int err;

	if (!cs || !task_storage_in_cgroup)
		return -ESRCH;
	if (!container_get(d->container))
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_USE))
		return -EPERM;
	target = thread_of(number);
	if (!target)
		return -ESRCH;
	err = request_send(p, cs->task.home, target, d->container, d->rights);
	bpf_task_release(target);
	return err;
}
