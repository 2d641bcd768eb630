/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Bind: which container a thread works for.
 *
 * Problem: the binding changes in socket option hooks and in tracepoints, request by request, and must cost next to nothing.
 * How: hooks on the thread's own CPU change the copy of its record there (record.bpf.h) with interrupts off. What was open is
 * settled first: the time, what the kernel counted for the thread, and what waited for a socket event.
 * Limits: another thread can only ask for it (request.bpf.h).
 */
#pragma once

#include "members.bpf.h"
#include "kept.bpf.h"
#include "steal.bpf.h"

/* What a thread may do with its home. A program that finds no room for a container of its own makes none in the policy's either. */
static __always_inline __u32 home_rights(const struct fief_task *t)
{
	struct fief_container *home = t->flags & FIEF_TASK_PROGRAM ? container_at(t->home.id) : NULL;
	__u32 rights = FIEF_RIGHT_USE | FIEF_RIGHT_READ;

	return home && home->flags & FIEF_CONTAINER_POLICY ? rights : rights | FIEF_RIGHT_CHILDREN;
}

/* Adds what the kernel counted for the thread since the last look to its container. */
static __always_inline void counters_settle(struct fief_cpu *cs, struct task_struct *p)
{
	struct fief_task *t = &cs->task;
	__u64 user = p->utime, system = p->stime, minor = p->min_flt, major = p->maj_flt, read = 0, written = 0;
	struct fief_container *c;
	__u64 n;

	if (bpf_core_field_exists(p->ioac.read_bytes)) {
		read = p->ioac.read_bytes;
		written = p->ioac.write_bytes;
	}
	if (user + system + minor + major + read + written ==
	    t->user_ns + t->system_ns + t->minor_faults + t->major_faults + t->read_bytes + t->write_bytes)
		return;
	c = container_at(t->binding.id);
	if (!c)
		return;
	if ((n = user - t->user_ns))
		__sync_fetch_and_add(&c->usage.user_ns, n);
	if ((n = system - t->system_ns))
		__sync_fetch_and_add(&c->usage.system_ns, n);
	if ((n = minor - t->minor_faults))
		__sync_fetch_and_add(&c->usage.minor_faults, n);
	if ((n = major - t->major_faults))
		__sync_fetch_and_add(&c->usage.major_faults, n);
	if ((n = read - t->read_bytes))
		__sync_fetch_and_add(&c->usage.disk_read_bytes, n);
	if ((n = written - t->write_bytes))
		__sync_fetch_and_add(&c->usage.disk_write_bytes, n);
	t->user_ns = user;
	t->system_ns = system;
	t->minor_faults = minor;
	t->major_faults = major;
	t->read_bytes = read;
	t->write_bytes = written;
}

/*
 * A thread's reference on what it is bound to. On its home it has one for life, and takes no other: every thread of a
 * process that binds and unbinds would write the one word of their home.
 */
static __always_inline void binding_put(struct fief_ref binding, struct fief_ref home)
{
	if (!same_ref(binding, home))
		container_put(binding.id, FIEF_THREAD);
}

/* As binding_put, for a thread that may be back soon: the CPU keeps the reference. */
static __always_inline void binding_keep(struct fief_ref binding, struct fief_ref home)
{
	if (!same_ref(binding, home))
		kept_put(binding.id, binding.generation);
}

/* A thread's reference on `to`, which somebody holds. */
static __always_inline void binding_hold(struct fief_container *c, struct fief_ref to)
{
	if (!kept_take(to))
		container_hold(c, FIEF_THREAD);
}

/*
 * The running thread's work belongs to `to` from `now` on; the caller has taken a thread reference on it, unless it is
 * the thread's home. Interrupts are off. Returns the container whose thread reference is to be dropped (binding_put,
 * after interrupts are on again). `client`: whose connection it is (abi/cost.h); 0: nobody knows.
 */
static __always_inline struct fief_ref task_rebind(struct fief_cpu *cs, struct task_struct *p, struct fief_ref to,
						   __u32 rights, bool followed, __u64 client, __u64 now)
{
	struct fief_ref was = cs->task.binding;

	steal_settle(cs, now);
	charge_until(cs, now);
	cs->task.client = client;
	counters_settle(cs, p);
	pending_settle(cs, followed ? to : was); /* a socket tells whose the time before it was, a call does not */
	cs->task.binding = to;
	cs->task.rights = rights;
	cs->task.flags &= ~FIEF_TASK_SLEPT;
	if (!cs->in_irq)
		cs->current_ = to;
	return was;
}

/*
 * The running thread begins to change its record. Where interrupts cannot be off (compat.bpf.h), a softirq or a switch can come
 * in its midst, and would take a request: a reference were let go of twice, and another never. It sees that it has to wait.
 */
static __always_inline struct fief_cpu *record_hold(unsigned long *flags)
{
	struct fief_cpu *cs;

	irq_save(flags);
	cs = this_cpu();
	if (cs && !irqs_can_be_off)
		__sync_fetch_and_add(&cs->changing, 1);
	return cs;
}

static __always_inline void record_let_go(struct fief_cpu *cs, unsigned long *flags)
{
	if (cs && !irqs_can_be_off)
		__sync_fetch_and_sub(&cs->changing, 1);
	irq_restore(flags);
}
