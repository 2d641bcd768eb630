/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stint: the time of one thread on one CPU between two switches, which begin and end with its record.
 */
#pragma once

#include "kthread.bpf.h"
#include "record.bpf.h"

/* The working copy becomes the running thread's. */
static __always_inline void task_enter(struct fief_cpu *cs, struct task_struct *next, __u32 switches)
{
	cs->receive = FIEF_RX_NONE;
	cs->refresh = 0;
	cs->recalled = record_recall(cs, next, switches);
	cs->has_task = cs->recalled || record_fetch(cs, next);
	if (cs->has_task) {
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

/* The stint of the thread that runs from now on. */
static __always_inline void stint_begin(struct fief_cpu *cs, struct task_struct *p, __u64 now, __u64 exec)
{
	__u32 switches = switches_of(p);

	served_begin(cs, p);
	task_enter(cs, p, switches);
	cs->running = p->pid;
	cs->thread = (__u64)p;
	cs->switches = switches;
	cs->switched_in_ns = now;
	cs->switched_in_exec = p->pid ? exec : EXEC_UNKNOWN;
	cs->softirq_ns = 0;
	steal_note(cs);
}

/* The noted thread leaves its CPU; `sleeps`: by itself; `seen`: what was stolen is still to be found out. */
static __always_inline void stint_end(struct fief_cpu *cs, struct task_struct *prev, __u64 now, bool seen, bool sleeps,
				      bool dead)
{
	if (seen) {
		steal_settle(cs, now);
		steal_take(cs, prev, now);
	}
	ring_look(cs, now);
	charge_until(cs, now);
	pool_close(cs);
	if (dead && !cs->has_task)
		task_late(cs, prev);
	if (cs->has_task)
		task_leave(cs, prev, sleeps, dead);
}
