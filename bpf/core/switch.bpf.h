/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Context switches and the life of threads: where the charge of a CPU passes from one thread to the next.
 */
#pragma once

#include "costly.bpf.h"
#include "unseen.bpf.h"
#include "program.bpf.h"

#define CLOCK_WINDOW_NS	  10000000
#define CLOCK_LATE_MAX_NS 10000000 /* more is another clock, not a late switch */
#define CLOCK_DRIFT_SHIFT 14	   /* what the clocks' rates differ by is less */
#define CLOCK_CLOSE_NS	  1000	   /* a distance that is the smallest again, but for what stands between both looks */
/* how long a comparison of the clocks lasts: about 1 ms, in units of 65 us */
#define CLOCK_COMPARED_SHIFT 16
#define CLOCK_COMPARED_LASTS 16

/*
 * How far the run queue's clock is behind, at a switch. A wake-up that leads to a switch has read it, and spares the switch a
 * second look (kernel/sched/core.c, rq_clock_skip_update). Both clocks apart are known by the smallest distance of the last
 * two windows: a CPU has a look of its own at least when a thread goes to sleep.
 */
static __always_inline __u64 clock_late(struct fief_cpu *cs, __u64 clock, __u64 now)
{
	__u64 age = now - cs->clock_from;
	__s64 distance = now - clock, late;

	if (age >= CLOCK_WINDOW_NS) {
		cs->clock_offset = cs->clock_from ? cs->clock_next : distance;
		cs->clock_next = distance;
		cs->clock_from = now;
	}
	if (distance < cs->clock_next)
		cs->clock_next = distance;
	if (distance < cs->clock_offset)
		cs->clock_offset = distance;
	late = distance - cs->clock_offset;
	if (late < CLOCK_CLOSE_NS)
		cs->clock_compared = clock >> CLOCK_COMPARED_SHIFT;
	if (late >= CLOCK_LATE_MAX_NS)
		cs->clock_offset = distance;
	return late > (__s64)(age >> CLOCK_DRIFT_SHIFT) && late < CLOCK_LATE_MAX_NS ? late : 0;
}

/*
 * When the CPU switched, by its own accounts. The run queue's clock tells it; CLOCK_MONOTONIC, whose reading is a third of
 * what a switch costs here, is asked only when both were not compared for a while.
 */
static __always_inline __u64 switch_time(struct fief_cpu *cs, struct task_struct *p)
{
	__u64 clock, now;

	if (!cs->run_queue) {
		if (!bpf_core_field_exists(p->se.cfs_rq))
			return bpf_ktime_get_ns();
		/* reached through a thread: its own symbol is not in every kernel's table */
		cs->run_queue = (__u64)p->se.cfs_rq->rq;
	}
	clock = queue_of(cs)->clock;
	if (cs->clock_from && (__u32)(clock >> CLOCK_COMPARED_SHIFT) - cs->clock_compared < CLOCK_COMPARED_LASTS)
		return clock + cs->clock_offset;
	now = bpf_ktime_get_ns();
	return now - clock_late(cs, clock, now);
}

/*
 * With the thread; or with the work of a worker that goes idle (TASK_NOLOAD): the end of what it wrote back was not told,
 * since the programs of the files object went meanwhile.
 */
static __always_inline bool record_ends(struct fief_cpu *cs, unsigned int prev_state)
{
	return prev_state & TASK_DEAD || (cs->has_task && cs->task.flags & FIEF_TASK_WRITES);
}

/* During an upgrade, old and new are attached together: the other was first. `next` has left no CPU since it was noted here. */
static __always_inline bool switch_told(struct fief_cpu *cs, struct task_struct *next)
{
	return cs->running == next->pid && cs->thread == (__u64)next && cs->switches == switches_of(next);
}

static __always_inline int switch_charge(bool preempt, struct task_struct *prev, struct task_struct *next,
					 unsigned int prev_state)
{
	struct fief_cpu *cs = this_cpu();
	__u64 now;

	if (!cs || switch_told(cs, next))
		return 0;
	now = switch_time(cs, next);
	if (!cpu_first_event(cs, now)) {
		bool sleeps = prev_state && !preempt;
		bool dead = sleeps && prev_state & (TASK_DEAD | TASK_NOLOAD) && record_ends(cs, prev_state);
		bool seen = prev->pid ? switches_of(prev) == cs->switches + 1 : !cs->run_clock;

		if (seen && cs->running == prev->pid)
			stint_end(cs, prev, now, true, sleeps, dead);
		else
			stint_end_unseen(cs, prev, now, sleeps, dead);
	} else if (!cs->online) {
		return 0;
	}
	if (cs->by_client)
		cost_settle(cs, true);
	run_note(cs, 0);
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
	ring_look(cs, 0);
	if (bpf_task_storage_get(&tasks, child, 0, 0))
		return 0; /* during an upgrade, old and new are attached together; the other was first */
	if (!cs->has_task) {
		/* clone into a managed cgroup by a stranger */
		unit = unit_of(cgroup_of(child));
		if (unit && !(child->flags & PF_KTHREAD))
			task_adopt(child, unit->home, unit->task_flags, true);
		return 0;
	}
	v = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!v) {
		/* only a unit gives it a record later (record_recover) */
		count_error(unit_of(cgroup_of(child)) ? FIEF_ERR_NO_STORAGE : FIEF_ERR_UNBOUND);
		return 0;
	}
	if (!record_claim(v))
		return 0;
	task_init(v, cs->task.home, 0);
	v->binding = cs->task.binding;
	v->rights = cs->task.rights;
	v->flags = (cs->task.flags & (FIEF_TASK_FOLLOW | FIEF_TASK_EXPLICIT | FIEF_TASK_MANAGED)) | FIEF_TASK_SLEPT;
	v->flags |= program_flags(&cs->task, child);
	if (v->flags & (FIEF_TASK_FORKED | FIEF_TASK_PROGRAM))
		v->client = cs->task.client;
	binding = container_at(v->binding.id);
	home = container_at(v->home.id);
	if (binding && !same_ref(v->binding, v->home))
		container_hold(binding, FIEF_THREAD);
	if (home)
		container_hold(home, FIEF_HANDLE);
	member_settle(v, child, false);
	__sync_lock_test_and_set(&v->made, RECORD_MADE);
	if (v->flags & FIEF_TASK_PROGRAM && child->pid == child->tgid)
		program_tell(child, v->home);
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

	if (!v || v->made != RECORD_MADE)
		return 0;
	count_error(FIEF_ERR_SWITCH);
	cs = cpu_at(bpf_core_field_exists(p->thread_info.cpu) ? p->thread_info.cpu : 0);
	if (cs && cs->has_task && cs->running == p->pid && switches_of(p) == cs->switches + 1)
		record_write(v, &cs->task);
	member_settle(v, p, true);
	record_end(v);
	bpf_task_storage_delete(&tasks, p);
	return 0;
}

static __noinline int thread_moved(struct task_struct *p, struct fief_unit *unit)
{
	if (!bpf_task_storage_get(&tasks, p, 0, 0))
		task_adopt(p, unit->home, unit->task_flags, false);
	return 0;
}

/*
 * A process is moved into a managed cgroup (systemd starts services this way), or a thread of one. The kernel tells the first thread of
 * a `whole` process alone. A thread that has a home keeps it; kernel threads get none.
 */
static __always_inline int attach_adopt(struct cgroup *to, struct task_struct *p, bool whole)
{
	struct fief_unit *unit = unit_of(to);
	struct task_struct *one;

	if (!unit || p->flags & PF_KTHREAD)
		return 0;
	thread_moved(p, unit);
	if (!whole || !bpf_ksym_exists(bpf_iter_task_new))
		return 0;
	bpf_for_each (task, one, p, BPF_TASK_ITER_PROC_THREADS)
		thread_moved(one, unit);
	return 0;
}
