/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Context switches and the life of threads: where the charge of a CPU passes from one thread to the next.
 *
 * Problem: the wall clock between two switches holds the thread's own time, softirqs on top of it and time that the
 * hypervisor took; the kernel's own account of the thread (sum_exec_runtime) tells the last from the others.
 * How: at every boundary the run queue's steal clock tells what was taken since the one before. At the switch, the wall
 * clock and the kernel's account of the stint tell the rest, to the nanosecond; what does not fit into the stint's
 * uncharged end is carried to the thread's next stint, so that per thread the charges meet the kernel's account.
 * Limits: the run queue knows of steal up to a tick late; within that time it is taken from the container bound last.
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

/*
 * Takes what the hypervisor had out of the uncharged end of the stint. If the thread was away meanwhile and nobody told
 * (switch_missed), the rest of the wall clock was another thread's, not the hypervisor's.
 */
static __always_inline void steal_take(struct fief_cpu *cs, struct task_struct *prev, __u64 now)
{
	__s64 stolen, room, *carry = cs->has_task ? &cs->task.carry_ns : &cs->carry_ns;
	struct fief_ref to = {FIEF_STEAL, 0};

	if (!cs->switched_in_exec)
		return;
	stolen = (__s64)(now - cs->switched_in_ns) - (__s64)(prev->se.sum_exec_runtime - cs->switched_in_exec);
	stolen -= cs->stint_stolen;
	if (exec_clock_excludes_softirq)
		stolen -= cs->softirq_ns;
	if (stolen > STEAL_MAX_NS || stolen < -STEAL_MAX_NS)
		return;
	room = now - cs->last_ns;
	if (switches_of(prev) != cs->switches + 1) {
		count_error(FIEF_ERR_SWITCH);
		to.id = FIEF_ROOT;
		if (stolen > room)
			stolen = room;
	} else {
		stolen += *carry;
		*carry = 0;
		if (stolen > room || stolen < 0) {
			*carry = stolen < 0 ? stolen : stolen - room;
			stolen = stolen < 0 ? 0 : room;
		}
	}
	if (stolen <= 0)
		return;
	charge_begin(cs);
	cs->last_ns += stolen;
	slot_of(cs, to)->thread_ns += stolen;
	charge_end(cs);
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
	charge_begin(cs);
	cs->last_ns += taken;
	slot_of(cs, (struct fief_ref){FIEF_STEAL, 0})->thread_ns += taken;
	charge_end(cs);
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

/* The working copy becomes the running thread's. */
static __always_inline void task_enter(struct fief_cpu *cs, struct task_struct *next)
{
	struct fief_task *v = bpf_task_storage_get(&tasks, next, 0, 0);

	if (v && v->made == RECORD_MAKING)
		v = NULL; /* there at the next switch */
	else if (!v && records_lost && next->pid && !(next->flags & PF_KTHREAD))
		v = record_recover(next);
	cs->receive = FIEF_RX_NONE;
	cs->refresh = 0;
	cs->has_task = v != NULL;
	if (v) {
		task_copy(&cs->task, v);
		if (v->request)
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

/* Nobody works under this record any more. */
static __always_inline void record_end(struct fief_task *v)
{
	struct fief_ref binding = v->binding, home = v->home;
	__u64 request = __sync_lock_test_and_set(&v->request, REQUEST_CLOSED);

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
	__builtin_memcpy((__u64 *)v + 1, (__u64 *)&cs->task + 1, sizeof(*v) - sizeof(__u64));
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
	cs->switches = switches_of(p);
	cs->switched_in_ns = now;
	cs->switched_in_exec = p->pid ? exec : 0;
	cs->softirq_ns = 0;
	cs->steal_seen = steal_clock(p);
	cs->stint_stolen = 0;
}

/* The run queue's clock, read a moment ago, against ours: it dates what the kernel notes of its threads. */
static __always_inline void clock_compare(struct fief_cpu *cs, struct task_struct *p, __u64 now)
{
	if (bpf_core_field_exists(p->se.cfs_rq) && bpf_core_field_exists(p->sched_info.last_arrival))
		cs->clock_offset = now - p->se.cfs_rq->rq->clock;
}

/*
 * The thread that left unseen: its record is written back. Returns when it had used up what the kernel has accounted to
 * it; `now` if that cannot be known.
 */
static __always_inline __u64 departure_settle(struct fief_cpu *cs, __u64 now)
{
	struct task_struct *gone;
	__u64 end = now;

	if (!cs->running || !bpf_ksym_exists(bpf_task_from_pid))
		return now;
	gone = bpf_task_from_pid(cs->running);
	if (!gone)
		return now;
	if (cs->has_task)
		task_leave(cs, gone, true, false);
	if (cs->switched_in_exec) {
		end = cs->switched_in_ns + (gone->se.sum_exec_runtime - cs->switched_in_exec) + cs->stint_stolen;
		if (exec_clock_excludes_softirq)
			end += cs->softirq_ns;
	}
	bpf_task_release(gone);
	return end;
}

/*
 * A switch that the kernel did not tell of (there are guests where patched kernel text is not the same in all address
 * spaces, see ARCHITECTURE.md; ftrace misses the same ones). The kernel's own accounts tell when: what it charged to the
 * thread that is gone, and when `p` got the CPU. Between the two the CPU was idle. Interrupts are off.
 */
static __noinline int switch_missed(struct fief_cpu *cs, struct task_struct *p, __u64 now)
{
	__u64 gone = departure_settle(cs, now), begin = now;

	count_error(FIEF_ERR_SWITCH);
	if (p->pid && cs->clock_offset)
		begin = p->sched_info.last_arrival + cs->clock_offset;
	else if (!p->pid)
		begin = gone;
	if (begin > now)
		begin = now;
	if (gone > begin)
		gone = begin;
	charge_until(cs, gone);
	pool_close(cs);
	cs->has_task = 0;
	cs->receive = FIEF_RX_NONE;
	cs->current_ = (struct fief_ref){FIEF_IDLE, 0};
	charge_until(cs, begin);
	/* 0: what was stolen from this stint is not known */
	stint_begin(cs, p, cs->last_ns, 0);
	return 0;
}

/* This CPU's record, and the running thread's in it. */
static __always_inline struct fief_cpu *this_thread(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = this_cpu();
	unsigned long flags;

	if (cs && cs->running != p->pid && cs->online && !cs->softirq_vector && !cs->in_irq) {
		irq_save(&flags);
		switch_missed(cs, p, bpf_ktime_get_ns());
		irq_restore(&flags);
	}
	return cs;
}

/*
 * With the thread; or with the work of a worker that goes idle (TASK_NOLOAD): the end of what it wrote back was not told,
 * since the programs of the files object went meanwhile.
 */
static __always_inline bool record_ends(struct fief_cpu *cs, unsigned int prev_state)
{
	return prev_state & TASK_DEAD || (cs->has_task && cs->task.flags & FIEF_TASK_WRITES);
}

static __always_inline int switch_charge(bool preempt, struct task_struct *prev, struct task_struct *next,
					 unsigned int prev_state)
{
	__u64 now = bpf_ktime_get_ns();
	struct fief_cpu *cs = this_cpu();

	if (!cs)
		return 0;
	if (!cpu_first_event(cs, now)) {
		if (cs->running != prev->pid)
			switch_missed(cs, prev, now);
		steal_settle(cs, prev, now);
		steal_take(cs, prev, now);
		charge_until(cs, now);
		pool_close(cs);
		bool dead = !preempt && prev_state & (TASK_DEAD | TASK_NOLOAD) && record_ends(cs, prev_state);
		if (dead && !cs->has_task)
			task_late(cs, prev);
		if (cs->has_task)
			task_leave(cs, prev, prev_state && !preempt, dead);
	}
	clock_compare(cs, next, now);
	stint_begin(cs, next, now, next->se.sum_exec_runtime);
	return 0;
}

/* A new thread takes binding and home of its creator; io_uring's workers come this way too. */
static __always_inline int newtask_inherit(struct task_struct *child)
{
	struct fief_cpu *cs = this_thread();
	struct fief_container *binding, *home;
	struct fief_unit *unit;
	struct fief_task *v;

	if (!cs)
		return 0;
	if (bpf_task_storage_get(&tasks, child, 0, 0))
		return 0; /* during an upgrade, old and new are attached together; the other was first */
	if (!cs->has_task) {
		/* clone into a managed cgroup by a stranger */
		unit = unit_of(child->cgroups->dfl_cgrp);
		if (unit)
			task_adopt(child, unit->home, unit->task_flags, true);
		return 0;
	}
	v = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!v) {
		count_error(FIEF_ERR_NO_STORAGE);
		records_lost = 1;
		return 0;
	}
	if (!record_claim(v))
		return 0;
	task_init(v, cs->task.home, 0);
	v->binding = cs->task.binding;
	v->rights = cs->task.rights;
	v->flags = (cs->task.flags & (FIEF_TASK_FOLLOW | FIEF_TASK_EXPLICIT | FIEF_TASK_MANAGED | FIEF_TASK_FOREIGN)) |
		   FIEF_TASK_SLEPT;
	binding = container_at(v->binding.id);
	home = container_at(v->home.id);
	if (binding && !same_ref(v->binding, v->home))
		container_hold(binding, FIEF_THREAD);
	if (home)
		container_hold(home, FIEF_HANDLE);
	member_settle(v, child, false);
	__sync_lock_test_and_set(&v->made, RECORD_MADE);
	return 0;
}

/*
 * The kernel frees a thread's structure, long after the thread left its last CPU. Whose record is still there left unseen
 * (switch_missed); its CPU may have the newer copy.
 */
static __always_inline int task_free(struct task_struct *p)
{
	struct fief_task *v = bpf_task_storage_get(&tasks, p, 0, 0);
	struct fief_cpu *cs;

	if (!v)
		return 0;
	count_error(FIEF_ERR_SWITCH);
	cs = cpu_at(bpf_core_field_exists(p->thread_info.cpu) ? p->thread_info.cpu : 0);
	if (cs && cs->has_task && cs->running == p->pid && switches_of(p) == cs->switches + 1)
		__builtin_memcpy((__u64 *)v + 1, (__u64 *)&cs->task + 1, sizeof(*v) - sizeof(__u64));
	member_settle(v, p, true);
	record_end(v);
	bpf_task_storage_delete(&tasks, p);
	return 0;
}

/* A process is moved into a managed cgroup (systemd starts services this way). Who has a home keeps it. */
static __always_inline int attach_adopt(struct cgroup *to, struct task_struct *p)
{
	struct fief_unit *unit = unit_of(to);

	if (!unit || bpf_task_storage_get(&tasks, p, 0, 0))
		return 0;
	task_adopt(p, unit->home, unit->task_flags, false);
	return 0;
}
