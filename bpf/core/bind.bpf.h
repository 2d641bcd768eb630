/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Bind: which container a thread works for.
 *
 * Problem: the binding changes in socket option hooks, in tracepoints and by other threads. Task storage is refused in cgroup
 * hooks before 6.13, and a lookup at each of them costs.
 * How: while a thread runs its record is in its CPU's record (`task`, `has_task`); sched_switch copies it in and out. Hooks on
 * the thread's own CPU work on the copy with interrupts off. Other threads leave a request in the storage, which takes effect
 * at the next boundary.
 * Limits: a request for a thread that runs alone takes effect at its next softirq (one tick).
 */
#pragma once

#include "kept.bpf.h"
#include "maps/tasks.bpf.h"
#include "maps/units.bpf.h"

#define PF_EXITING   0x00000004
#define PF_KTHREAD   0x00200000
#define TASK_DEAD    0x00000080
#define TASK_NOLOAD  0x00000400

#define EXEC_UNKNOWN ~0ull /* of switched_in_exec; a new thread begins with 0 */

/* with PARAVIRT_TIME_ACCOUNTING only */
struct rq___steal {
	u64 prev_steal_time_rq;
} __attribute__((preserve_access_index));

/* Nanoseconds that the hypervisor took from a CPU, as its run queue knows at its last update (a tick ago or less). */
static __always_inline __u64 queue_steal(struct rq *queue)
{
	if (!bpf_core_field_exists(struct rq___steal, prev_steal_time_rq))
		return 0;
	return bpf_core_cast(queue, struct rq___steal)->prev_steal_time_rq;
}

/* Nanoseconds that it has left out of what it accounts to threads (kernel/sched/core.c update_rq_clock_task). */
static __always_inline __u64 queue_excluded(struct rq *queue)
{
	return queue->clock - queue->clock_task;
}

/* The run queue is reached through its thread: its own symbol is not in every kernel's table. */
static __always_inline __u64 steal_clock(struct task_struct *running)
{
	return bpf_core_field_exists(running->se.cfs_rq) ? queue_steal(running->se.cfs_rq->rq) : 0;
}

static __always_inline __u64 excluded_clock(struct task_struct *running)
{
	return bpf_core_field_exists(running->se.cfs_rq) ? queue_excluded(running->se.cfs_rq->rq) : 0;
}

/*
 * What was stolen since the last look, by both clocks. The kernel forgets of it what it learns too late, and so do we: else
 * a container lacked what its threads' own clocks have.
 */
static __always_inline __s64 steal_since(struct fief_cpu *cs, __u64 steal, __u64 excluded)
{
	__s64 stolen = steal - cs->steal_seen, most = excluded - cs->excluded;

	if (stolen > most)
		stolen = most;
	return stolen > 0 ? stolen : 0;
}

static __always_inline void steal_note(struct fief_cpu *cs, struct task_struct *running)
{
	cs->steal_seen = steal_clock(running);
	cs->excluded = excluded_clock(running);
	cs->stint_stolen = 0;
}

/*
 * Steal that became known since the last look is not the thread's: it comes out of the uncharged time, and what does not
 * fit waits for the next look. Interrupts are off.
 */
static __always_inline void steal_settle(struct fief_cpu *cs, struct task_struct *running, __u64 now)
{
	__u64 known = steal_clock(running);
	__s64 stolen, room = now - cs->last_ns;

	if (known == cs->steal_seen || room <= 0 || cs->switched_in_exec == EXEC_UNKNOWN)
		return;
	stolen = steal_since(cs, known, excluded_clock(running));
	cs->steal_seen = known;
	if (stolen > room) {
		cs->steal_seen -= stolen - room;
		stolen = room;
	}
	cs->excluded += stolen;
	cs->stint_stolen += stolen;
	charge_take(cs, FIEF_STEAL, stolen, now);
}

/*
 * A request is one word, so that those who leave it, the thread that takes it and the thread's end each see it
 * whole; whoever swaps it out owns its thread reference.
 *
 *      63                    32 31  28 27 24 23              0
 *     +------------------------+------+-----+-----------------+
 *     |       generation       |rights|flags|       id        |   0: none
 *     +------------------------+------+-----+-----------------+   all ones: the thread has ended
 */
#define REQUEST_CLOSED	 ~0ull
#define REQUEST_ID(word) ((__u32)(word) & 0x00ffffff)
#define REQUEST_COUNTS	 (1u << 24) /* as a member; else the thread is one already */
#define REQUEST_MANAGED	 (1u << 25) /* it is the thread's home from now on, and whether it follows comes with it */
#define REQUEST_FOLLOW	 (1u << 26)

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

/* What was open since the wake-up belongs to `to`. Interrupts are off, time is charged up to now. */
static __always_inline void pending_settle(struct fief_cpu *cs, struct fief_ref to)
{
	struct fief_cache_slot *slot;

	if (!cs->task.pending_ns)
		return;
	slot = slot_of(cs, to);
	charge_begin(cs);
	slot->thread_ns += cs->task.pending_ns;
	cs->task.pending_ns = 0;
	charge_end(cs);
}

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

/*
 * A thread's reference on what it is bound to. On its home it has one for life, and takes no other: every thread of a
 * process that binds and unbinds would write the one word of their home.
 */
static __always_inline void binding_put(struct fief_ref binding, struct fief_ref home)
{
	if (!same_ref(binding, home))
		container_put(binding.id, FIEF_THREAD);
}

/* As binding_put, for who may be back soon: the CPU keeps the reference. */
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
 * after interrupts are on again).
 */
static __always_inline struct fief_ref task_rebind(struct fief_cpu *cs, struct task_struct *p, struct fief_ref to,
						   __u32 rights, bool followed, __u64 now)
{
	struct fief_ref was = cs->task.binding;

	steal_settle(cs, p, now);
	charge_until(cs, now);
	counters_settle(cs, p);
	pending_settle(cs, followed ? to : was); /* a socket tells whose the time before it was, a call does not */
	cs->task.binding = to;
	cs->task.rights = rights;
	cs->task.flags &= ~FIEF_TASK_SLEPT;
	if (!cs->in_irq)
		cs->current_ = to;
	return was;
}

/* A request stands for its thread in the count of the container until the thread is a member itself. */
static __always_inline void request_count(__u64 word, __u64 members)
{
	struct fief_container *c = container_at(REQUEST_ID(word));

	if (c && word & REQUEST_COUNTS)
		__sync_fetch_and_add(&c->members, members);
}

/* Nobody takes it any more. */
static __always_inline void request_drop(__u64 word)
{
	request_count(word, -FIEF_MEMBER_THREAD);
	container_put(REQUEST_ID(word), FIEF_THREAD);
}

/* Leaves a request; the caller has taken a thread reference, which is the request's from now on, or dropped. */
static __noinline __attribute__((unused)) int request_leave(struct fief_task *v, struct fief_ref to, __u32 rights,
							    __u32 flags)
{
	__u64 word = (__u64)to.generation << 32 | (rights & FIEF_RIGHTS_ALL) << 28 | flags | to.id, old, seen;
	int i;

	if (!v)
		return -ESRCH;
	if (!same_ref(v->counted, to))
		word |= REQUEST_COUNTS;
	old = v->request;
	request_count(word, FIEF_MEMBER_THREAD);
	bpf_for (i, 0, CAS_TRIES) {
		if (old == REQUEST_CLOSED)
			break;
		seen = __sync_val_compare_and_swap(&v->request, old, word);
		if (seen == old) {
			if (old)
				request_drop(old);
			return 0;
		}
		old = seen;
	}
	request_drop(word);
	return old == REQUEST_CLOSED ? -ESRCH : -EAGAIN;
}

/* Another home, which somebody holds: what the thread had entered below the old one is left. Interrupts are off. */
static __noinline int home_move(struct fief_cpu *cs, struct fief_ref to)
{
	struct fief_ref old = cs->task.home;
	struct fief_container *c = container_at(to.id);

	if (c)
		container_hold(c, FIEF_HANDLE);
	for (int i = 0; i < FIEF_NEST; i++) {
		if (i < cs->task.nested && !same_ref(cs->task.nest[i].container, old))
			container_put_here(cs->task.nest[i].container.id, FIEF_THREAD);
	}
	cs->task.nested = 0;
	cs->task.followed.id = FIEF_NO_ID;
	cs->task.home = to;
	return container_put_here(old.id, FIEF_HANDLE);
}

/* A thread's request from outside, taken at a boundary on its own CPU. The requester's reference becomes the
 * thread's. */
static __always_inline void request_take(struct fief_cpu *cs, struct fief_task *v, struct task_struct *p)
{
	__u64 word = __sync_lock_test_and_set(&v->request, 0);
	struct fief_ref to = {REQUEST_ID(word), word >> 32}, was = cs->task.binding, home = cs->task.home;

	if (!word)
		return;
	request_count(word, -FIEF_MEMBER_THREAD);
	counters_settle(cs, p);
	cs->task.binding = to;
	cs->task.rights = word >> 28 & FIEF_RIGHTS_ALL;
	if (word & REQUEST_MANAGED) {
		cs->task.flags &= ~FIEF_TASK_FOLLOW;
		if (!same_ref(to, home))
			home_move(cs, to);
	}
	if (word & REQUEST_FOLLOW)
		cs->task.flags |= FIEF_TASK_FOLLOW;
	cs->task.flags |= FIEF_TASK_EXPLICIT;
	if (same_ref(to, cs->task.home)) {
		cs->task.flags &= ~FIEF_TASK_EXPLICIT;
		container_put_here(to.id, FIEF_THREAD);
	}
	member_settle(&cs->task, p, false);
	if (!same_ref(was, home))
		container_put_here(was.id, FIEF_THREAD);
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
	if (cs && !bpf_ksym_exists(bpf_local_irq_save))
		__sync_fetch_and_add(&cs->changing, 1);
	return cs;
}

static __always_inline void record_let_go(struct fief_cpu *cs, unsigned long *flags)
{
	if (cs && !bpf_ksym_exists(bpf_local_irq_save))
		__sync_fetch_and_sub(&cs->changing, 1);
	irq_restore(flags);
}

/* Copies a record; its nest only if something is on it. */
static __always_inline void task_copy(struct fief_task *to, const struct fief_task *from)
{
	__builtin_memcpy(to, from, __builtin_offsetof(struct fief_task, nest));
	if (from->nested)
		__builtin_memcpy(to->nest, from->nest, sizeof(to->nest));
}

#define RECORD_NONE   0 /* fresh storage is zero; also what has ended and may be claimed again */
#define RECORD_MAKING 1
#define RECORD_MADE   2
#define MAKING_TRIES  4096

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

/* The managed unit that a cgroup is in, at any depth. */
static __noinline struct fief_unit *unit_of(struct cgroup *cgroup)
{
	struct fief_unit *unit = NULL;
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH) {
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
