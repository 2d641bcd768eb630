/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stint: a thread's time between two context switches, from the charge at its begin to the settlement at its end.
 *
 * Problem: the wall clock between two switches holds the thread's own time, softirqs on top of it and stolen time; the kernel's
 * own account of the thread (sum_exec_runtime) separates the last from the others.
 * How: at every boundary the run queue's steal clock tells the steal since the one before. At the switch, the wall clock and
 * the kernel's account of the stint tell the rest, to the nanosecond. A remainder that exceeds the stint's uncharged end is
 * carried to the thread's next stint, so that per thread the charges equal the kernel's account.
 * Limits: the run queue knows of steal up to a tick late; such steal is taken from the container bound last.
 */
#pragma once

#include "bind.bpf.h"

#define STEAL_MAX_NS   10000000000ll /* more is a clock that jumped, not a hypervisor */
#define PENDING_MAX_NS 100000	     /* what may wait for a socket event over a sleep */

/* Context switches of a thread; one more each time it leaves its CPU, counted before sched_switch tells. */
static __always_inline __u32 switches_of(struct task_struct *p)
{
	return p->nvcsw + p->nivcsw;
}

/* Up to when the wall clock of the stint is its thread's by the kernel's account of it, or known to be stolen. */
static __always_inline __u64 accounted_until(struct fief_cpu *cs, struct task_struct *p)
{
	__u64 until = cs->switched_in_ns + (p->se.sum_exec_runtime - cs->switched_in_exec) + cs->stint_stolen;

	return exec_clock_excludes_softirq ? until + cs->softirq_ns : until;
}

static __always_inline bool is_kthread(struct task_struct *p)
{
	return p->pid && p->flags & PF_KTHREAD;
}

/* What of the stint's wall clock is neither. False: that cannot be known. */
static __always_inline bool stint_lacks(struct fief_cpu *cs, struct task_struct *prev, __u64 now, __s64 *lacks)
{
	if (cs->switched_in_exec == EXEC_UNKNOWN)
		return false;
	if (is_kthread(prev)) {
		/*
		 * Those that receive are not preempted: what they do after the wake-up of another thread, the kernel
		 * accounts to that one (switch.bpf.h, clock_late). Their own clocks cannot tell what was stolen.
		 */
		*lacks = excluded_clock(prev) - cs->excluded;
		if (exec_clock_excludes_softirq)
			*lacks -= cs->softirq_ns;
	} else {
		*lacks = now - accounted_until(cs, prev);
	}
	return *lacks <= STEAL_MAX_NS && *lacks >= -STEAL_MAX_NS;
}

/* Takes what the hypervisor had out of the uncharged end of the stint. */
static __always_inline void steal_take(struct fief_cpu *cs, struct task_struct *prev, __u64 now)
{
	__s64 stolen, room = now - cs->last_ns, *carry = cs->has_task ? &cs->task.carry_ns : &cs->carry_ns;

	if (!stint_lacks(cs, prev, now, &stolen))
		return;
	if (room < 0)
		room = 0;
	stolen += *carry;
	*carry = 0;
	if (stolen > room || stolen < 0) {
		*carry = stolen < 0 ? stolen : stolen - room;
		stolen = stolen < 0 ? 0 : room;
	}
	charge_take(cs, FIEF_STEAL, stolen, now);
}

/*
 * In the thread of a lane hardly anything of a stint is uncharged when it ends, since each packet is a charge: what was
 * carried on is taken from the packets of the next stint. Interrupts are off.
 */
static __always_inline void carry_take(struct fief_cpu *cs, __u64 now)
{
	__s64 taken = cs->task.carry_ns, room = now - cs->last_ns;

	if (!cs->has_task || cs->softirq_vector || taken <= 0 || room <= 0)
		return;
	if (taken > room)
		taken = room;
	cs->task.carry_ns -= taken;
	charge_take(cs, FIEF_STEAL, taken, now);
}

/* A kernel thread tells what it does by its name; the last one's is remembered, since NAPI threads come often. */
static __noinline __u32 kthread_look(struct task_struct *p)
{
	char comm[16];

	if (bpf_probe_read_kernel(comm, sizeof(comm), p->comm))
		return FIEF_SYSTEM_KTHREAD;
	if (comm[0] == 'k' && comm[1] == 'w' && comm[2] == 'o')
		return FIEF_SYSTEM_KWORKER;
	if (comm[0] == 'k' && comm[1] == 's' && comm[2] == 'o' && comm[3] == 'f')
		return FIEF_SYSTEM_KSOFTIRQD;
	if (comm[0] == 'n' && comm[1] == 'a' && comm[2] == 'p' && comm[3] == 'i' && comm[4] == '/')
		return FIEF_SYSTEM_NAPI;
	return FIEF_SYSTEM_KTHREAD;
}

static __always_inline __u32 kthread_kind(struct fief_cpu *cs, struct task_struct *p)
{
	if (cs->kthread != p->pid) {
		cs->kthread_kind = kthread_look(p);
		cs->kthread = p->pid;
	}
	return cs->kthread_kind;
}

/* A managed thread whose record could not be made at its birth gets it now, or at its next switch. */
static __noinline struct fief_task *record_recover(struct task_struct *p)
{
	struct fief_unit *unit = unit_of(p->cgroups->dfl_cgrp);

	if (!unit || task_adopt(p, unit->home, unit->task_flags, true))
		return NULL;
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* A thread's record. Most threads have no storage at all, nor has the idle one: they are spared the call. */
static __always_inline struct fief_task *record_of(struct task_struct *p)
{
	return p->bpf_storage ? bpf_task_storage_get(&tasks, p, 0, 0) : NULL;
}

/* The working copy becomes the running thread's. */
static __always_inline void task_enter(struct fief_cpu *cs, struct task_struct *next)
{
	struct fief_task *v = record_of(next);

	if (v && v->made != RECORD_MADE)
		v = NULL; /* there at the next switch, or ended */
	else if (!v && next->pid && !(next->flags & PF_KTHREAD) && records_lost())
		v = record_recover(next);
	cs->receive = FIEF_RX_NONE;
	cs->refresh = 0;
	cs->has_task = v != NULL;
	if (v) {
		task_copy(&cs->task, v);
		if (v->request && cs->changing)
			cs->refresh = 1; /* perhaps by this thread: a softirq takes it later */
		else if (v->request)
			request_take(cs, v, next);
		cs->current_ = cs->task.binding;
		if ((cs->task.flags & (FIEF_TASK_FOLLOW | FIEF_TASK_EXPLICIT | FIEF_TASK_SLEPT)) ==
		    (FIEF_TASK_FOLLOW | FIEF_TASK_SLEPT))
			cs->current_ = (struct fief_ref){FIEF_NO_ID, 0};
		if (next->flags & PF_KTHREAD && !(cs->task.flags & FIEF_TASK_WRITES))
			cs->receive = FIEF_RX_OPEN; /* the thread of a lane: all that it does is receiving */
		return;
	}
	if (!next->pid) {
		cs->current_ = (struct fief_ref){FIEF_IDLE, 0};
	} else if (next->flags & PF_KTHREAD) {
		set_system(cs, kthread_kind(cs, next));
		if (cs->kind == FIEF_SYSTEM_NAPI)
			cs->receive = FIEF_RX_OPEN;
	} else {
		cs->current_ = (struct fief_ref){FIEF_ROOT, 0};
	}
}

/*
 * Nobody works under this record any more. The storage that holds it may outlive it: the kernel refuses to delete one while
 * its CPU's storage is busy. So the record itself says that it has ended, and its references are dropped once.
 */
static __always_inline void record_end(struct fief_task *v)
{
	struct fief_ref binding = v->binding, home = v->home;
	__u64 request;

	if (__sync_lock_test_and_set(&v->made, RECORD_NONE) != RECORD_MADE)
		return;
	request = __sync_lock_test_and_set(&v->request, REQUEST_CLOSED);
	if (request)
		request_drop(request);
	for (int i = 0; i < FIEF_NEST; i++) {
		if (i < v->nested)
			binding_put(v->nest[i].container, home);
	}
	binding_put(binding, home);
	container_put(home.id, FIEF_HANDLE);
}

static __always_inline void task_leave(struct fief_cpu *cs, struct task_struct *prev, bool sleeps, bool dead)
{
	struct fief_task *v = bpf_task_storage_get(&tasks, prev, 0, 0);

	if (!v)
		return;
	if (!(prev->flags & PF_KTHREAD))
		counters_settle(cs, prev);
	if (sleeps) {
		if (cs->task.pending_ns > PENDING_MAX_NS)
			pending_settle(cs, cs->task.home);
		cs->task.flags |= FIEF_TASK_SLEPT;
	}
	if (dead)
		pending_settle(cs, cs->task.home);
	member_settle(&cs->task, prev, dead);
	/* all but the request, its first word: one can come at any time */
	__builtin_memcpy((__u64 *)v + 1, (__u64 *)&cs->task + 1,
			 __builtin_offsetof(struct fief_task, nest) - sizeof(__u64));
	if (cs->task.nested)
		__builtin_memcpy(v->nest, cs->task.nest, sizeof(v->nest));
	if (!dead)
		return;
	record_end(v);
	bpf_task_storage_delete(&tasks, prev);
}

/* A thread can be given a home while it runs, and end before its CPU saw that. */
static __always_inline void task_late(struct fief_cpu *cs, struct task_struct *prev)
{
	struct fief_task *v = bpf_task_storage_get(&tasks, prev, 0, 0);

	if (v) {
		task_copy(&cs->task, v);
		cs->has_task = 1;
	}
}

/* The stint of the thread that runs from now on. */
static __always_inline void stint_begin(struct fief_cpu *cs, struct task_struct *p, __u64 now, __u64 exec)
{
	task_enter(cs, p);
	cs->running = p->pid;
	cs->thread = (__u64)p;
	cs->switches = switches_of(p);
	cs->switched_in_ns = now;
	cs->switched_in_exec = p->pid ? exec : EXEC_UNKNOWN;
	cs->softirq_ns = 0;
	steal_note(cs, p);
}
