/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Record: what Fief knows of a thread, from its birth to its end.
 *
 * Problem: hooks need the record of the running thread at every boundary. Task storage is refused in cgroup hooks before 6.13, and
 * a lookup at each of them costs.
 * How: while a thread runs, its record is in its CPU's record (`task`, `has_task`); sched_switch copies it in and out. At rest it
 * lies in the thread's storage. Asking for the storage of both threads of a switch took a third of its cost, so a CPU remembers
 * the records of the threads that left it last: where the kernel counts no switch of the thread since, it ran nowhere else,
 * and what is remembered is what is stored. A record at rest is changed by nobody; what others leave is a request, and each
 * request is counted for all threads together, so that after one every CPU asks the storage again.
 * Limits: a CPU remembers FIEF_RECENT threads, by their number. A thread whose record could not be made at its birth gets it at
 * a later switch, with its unit's home in the place of its creator's container; outside of every unit it gets none.
 */
#pragma once

#include "request.bpf.h"
#include "ring.bpf.h"
#include "maps/tasks.bpf.h"
#include "maps/units.bpf.h"

#define PENDING_MAX_NS 100000 /* what may wait for a socket event over a sleep */

#define RECORD_NONE    0 /* fresh storage is zero; also what has ended and may be claimed again */
#define RECORD_MAKING  1
#define RECORD_MADE    2
#define MAKING_TRIES   4096

/*
 * Two can give a thread its record at the same time: fief manage, and the thread itself by its first call. One of them
 * makes it; the other waits.
 */
static __always_inline bool record_claim(struct fief_task *v)
{
	return __sync_val_compare_and_swap(&v->made, RECORD_NONE, RECORD_MAKING) == RECORD_NONE;
}

/* Whether the record that another one makes is there; if that one was interrupted, the caller may try again. */
static __noinline int record_wait(struct fief_task *v)
{
	int i;

	if (!v)
		return -ESRCH;
	bpf_for (i, 0, MAKING_TRIES) {
		if (*(volatile __u32 *)&v->made == RECORD_MADE)
			return 0;
	}
	return -EAGAIN;
}

/* What a claimed record begins with; `made` is the caller's last word. */
static __always_inline void task_init(struct fief_task *t, struct fief_ref home, __u32 flags)
{
	t->binding = home;
	t->home = home;
	t->rights = FIEF_RIGHT_USE | FIEF_RIGHT_READ | FIEF_RIGHT_CHILDREN;
	t->flags = flags | FIEF_TASK_SLEPT;
	t->staged.id = FIEF_NO_ID;
	t->followed.id = FIEF_NO_ID;
	t->counted.id = FIEF_NO_ID;
	t->nested = 0;
	t->ring = 0;
	t->client = 0;
	__sync_val_compare_and_swap(&t->request, REQUEST_CLOSED, 0);
}

/* What the kernel counted before the thread was managed is not its container's. */
static __always_inline void counters_skip(struct fief_task *t, struct task_struct *p)
{
	t->user_ns = p->utime;
	t->system_ns = p->stime;
	t->minor_faults = p->min_flt;
	t->major_faults = p->maj_flt;
	if (bpf_core_field_exists(p->ioac.read_bytes)) {
		t->read_bytes = p->ioac.read_bytes;
		t->write_bytes = p->ioac.write_bytes;
	}
}

/*
 * Whether a new thread could not be given its record (the storage of its CPU was busy: a hook was preempted in the
 * middle of a look-up). From then on threads without one are asked for their cgroup at each switch, until they have it.
 */
static __always_inline bool records_lost(void)
{
	struct fief_control *control = control_get();

	return control && control->errors[FIEF_ERR_NO_STORAGE];
}

/*
 * The next two read pointers through a thread that the verifier does not trust: at each read through one that it trusts it
 * searches all names of the kernel for that of the structure (kernel/bpf/btf.c btf_nested_type_is_trusted), which took a sixth of
 * the time to load.
 */
static __always_inline bool has_storage(const struct task_struct *p)
{
	return bpf_core_cast(p, struct task_struct)->bpf_storage;
}

static __always_inline struct cgroup *cgroup_of(const struct task_struct *p)
{
	return bpf_core_cast(p, struct task_struct)->cgroups->dfl_cgrp;
}

/* The managed unit that a cgroup is in, at any depth. */
static __noinline struct fief_unit *unit_of(struct cgroup *cgroup)
{
	struct fief_unit *unit = NULL;
	int i;

	bpf_for (i, 0, UNIT_DEPTH) {
		struct cgroup_subsys_state *above;
		__u64 id;

		if (!cgroup)
			break;
		id = BPF_CORE_READ(cgroup, kn, id);
		unit = bpf_map_lookup_elem(&units, &id);
		if (unit)
			break;
		above = BPF_CORE_READ(cgroup, self.parent);
		cgroup = above ? BPF_CORE_READ(above, cgroup) : NULL;
	}
	return unit;
}

/* Gives a thread without a record its home. `home` is held by the unit or the policy. */
static __noinline int task_adopt(struct task_struct *p, struct fief_ref home, __u32 flags, bool fresh)
{
	struct fief_container *c = container_get(home);
	struct fief_task *v;
	struct fief_cpu *cs;

	if (!c)
		return -ESTALE;
	if (p->flags & PF_EXITING)
		return -ESRCH; /* nothing would take the record away again */
	v = bpf_task_storage_get(&tasks, p, 0, 0);
	if (v && v->made != RECORD_NONE)
		return record_wait(v);
	v = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!v) {
		count_error(FIEF_ERR_NO_STORAGE);
		return -ENOMEM;
	}
	if (!record_claim(v))
		return record_wait(v);
	task_init(v, home, flags | FIEF_TASK_MANAGED);
	if (!fresh)
		counters_skip(v, p);
	container_hold(c, FIEF_HANDLE);
	member_settle(v, p, false);
	__sync_lock_test_and_set(&v->made, RECORD_MADE);
	if (!fresh) {
		cs = cpu_at(bpf_core_field_exists(p->thread_info.cpu) ? p->thread_info.cpu : 0);
		if (cs)
			cs->refresh = 1;
	}
	return 0;
}

/* Copies a record; its nest only if something is on it. */
static __always_inline void task_copy(struct fief_task *to, const struct fief_task *from)
{
	__builtin_memcpy(to, from, __builtin_offsetof(struct fief_task, nest));
	if (from->nested)
		__builtin_memcpy(to->nest, from->nest, sizeof(to->nest));
}

/* Stores a record; all but the request, its first word: one can come at any time. */
static __always_inline void record_write(struct fief_task *v, const struct fief_task *task)
{
	__builtin_memcpy((__u64 *)v + 1, (__u64 *)task + 1, __builtin_offsetof(struct fief_task, nest) - sizeof(__u64));
	if (task->nested)
		__builtin_memcpy(v->nest, task->nest, sizeof(v->nest));
}

/* The working copy becomes what is stored, in the midst of a stint. */
static __always_inline void record_load(struct fief_cpu *cs, const struct fief_task *v)
{
	task_copy(&cs->task, v);
	cs->has_task = 1;
	cs->recalled = 0;
	cs->requests_read = REQUESTS_UNKNOWN;
}

/* Context switches of a thread; one more each time it leaves its CPU, counted before sched_switch tells. */
static __always_inline __u32 switches_of(struct task_struct *p)
{
	return p->nvcsw + p->nivcsw;
}

static __always_inline struct fief_recent *recent_of(struct fief_cpu *cs, struct task_struct *p)
{
	return &cs->recent[p->pid & (FIEF_RECENT - 1)];
}

/*
 * The working copy becomes what this CPU remembers of the thread. False: nothing, or not the last word. Most threads have no
 * storage at all, nor has the idle one: nobody looks for them.
 */
static __always_inline bool record_recall(struct fief_cpu *cs, struct task_struct *p, __u32 switches)
{
	struct fief_recent *recent;

	if (!has_storage(p))
		return false;
	recent = recent_of(cs, p);
	if (recent->thread != (__u64)p || recent->switches != switches || recent->started != p->start_time ||
	    recent->requests != requests_told())
		return false;
	cs->requests_read = recent->requests;
	task_copy(&cs->task, &recent->task);
	return true;
}

/* The working copy is what is stored for the thread that leaves. */
static __always_inline void record_remember(struct fief_cpu *cs, struct task_struct *p)
{
	struct fief_recent *recent = recent_of(cs, p);

	recent->thread = (__u64)p;
	recent->started = p->start_time;
	recent->requests = cs->requests_read;
	recent->switches = switches_of(p);
	task_copy(&recent->task, &cs->task);
}

/* Whether the copy has changed; the request is no part of it. */
static __always_inline bool record_differs(const struct fief_task *task, const struct fief_task *stored)
{
	const __u64 *a = (const __u64 *)task, *b = (const __u64 *)stored;
	__u64 differs = task->nested;

#pragma unroll
	for (int i = 1; i < __builtin_offsetof(struct fief_task, nest) / sizeof(__u64); i++)
		differs |= a[i] ^ b[i];
	return differs;
}

/* A managed thread whose record could not be made at its birth gets it now, or at its next switch. */
static __noinline struct fief_task *record_recover(struct task_struct *p)
{
	struct fief_unit *unit = unit_of(cgroup_of(p));

	if (!unit || task_adopt(p, unit->home, unit->task_flags, true))
		return NULL;
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* A thread's record. */
static __always_inline struct fief_task *record_of(struct task_struct *p)
{
	return has_storage(p) ? bpf_task_storage_get(&tasks, p, 0, 0) : NULL;
}

/* The working copy becomes what is stored for the thread. False: nothing is. */
static __always_inline bool record_fetch(struct fief_cpu *cs, struct task_struct *next)
{
	struct fief_task *v = record_of(next);

	if (v && v->made != RECORD_MADE)
		v = NULL; /* there at the next switch, or ended */
	else if (!v && next->pid && !(next->flags & PF_KTHREAD) && records_lost())
		v = record_recover(next);
	if (!v)
		return false;
	cs->requests_read = requests_told();
	task_copy(&cs->task, v);
	if (v->request && cs->changing) {
		cs->refresh = 1; /* perhaps by this thread: a softirq takes it later */
		cs->requests_read = REQUESTS_UNKNOWN;
	} else if (v->request) {
		request_take(cs, v, next);
	}
	return true;
}

/* A ring that no thread has any more: lets go of what it names. */
__noinline int ring_end(__u32 number, __u32 generation)
{
	struct fief_ring *ring = ring_at(number, generation);
	int i;

	if (!ring || !ring->taken)
		return 0;
	bpf_for (i, 1, FIEF_RING_PLACES) {
		if (ring->filled >> i & 1)
			container_put(ring->places[place_bounded(i)].container.id, FIEF_THREAD);
	}
	ring->filled = 0;
	ring->generation++; /* before somebody else can take it */
	__sync_lock_test_and_set(&ring->taken, 0);
	return 0;
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
	for (int i = 0; i < FIEF_NEST; i++) {
		if (i < v->nested)
			binding_put(v->nest[i].container, home);
	}
	binding_put(binding, home);
	if (v->ring)
		ring_end(v->ring, v->ring_generation);
	request = __sync_lock_test_and_set(&v->request, REQUEST_CLOSED);
	if (request)
		request_drop(request);
	container_put(home.id, FIEF_HANDLE);
}

static __always_inline void task_leave(struct fief_cpu *cs, struct task_struct *prev, bool sleeps, bool dead)
{
	struct fief_recent *recent = cs->recalled ? recent_of(cs, prev) : NULL;
	struct fief_task *v = recent ? NULL : bpf_task_storage_get(&tasks, prev, 0, 0);

	if (!recent && !v)
		return;
	if (!(prev->flags & PF_KTHREAD))
		counters_settle(cs, prev);
	if (sleeps) {
		/* its next socket tells; a thread that was forked for a client works on for that one */
		if ((cs->task.flags & (FIEF_TASK_FOLLOW | FIEF_TASK_EXPLICIT | FIEF_TASK_FORKED)) == FIEF_TASK_FOLLOW)
			cs->task.client = 0;
		if (cs->task.pending_ns > PENDING_MAX_NS)
			pending_settle(cs, cs->task.home);
		cs->task.flags |= FIEF_TASK_SLEPT;
	}
	if (dead)
		pending_settle(cs, cs->task.home);
	member_settle(&cs->task, prev, dead);
	if (recent && !dead && !record_differs(&cs->task, &recent->task)) {
		recent->switches = switches_of(prev);
		return;
	}
	if (!v)
		v = bpf_task_storage_get(&tasks, prev, 0, 0);
	if (!v)
		return;
	record_write(v, &cs->task);
	if (!dead) {
		record_remember(cs, prev);
		return;
	}
	record_end(v);
	bpf_task_storage_delete(&tasks, prev);
}

/* A thread can be given a home while it runs, and end before its CPU saw that. */
static __always_inline void task_late(struct fief_cpu *cs, struct task_struct *prev)
{
	struct fief_task *v = bpf_task_storage_get(&tasks, prev, 0, 0);

	if (v && v->made == RECORD_MADE)
		record_load(cs, v);
}
