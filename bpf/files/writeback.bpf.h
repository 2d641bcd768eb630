/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Writeback: the time of the kernel threads that take dirty pages of a labelled file to the disk.
 *
 * Problem: a worker writes the files of everybody, one after the other; it sleeps, migrates and is interrupted meanwhile.
 * How: from the begin of a file to its end the worker has a record as a managed thread has: its home is the file's container,
 * so switches and interrupts bring it back by themselves. Such a record ends too when the worker has no work left, should
 * these programs go in the midst of it.
 * Limits: a thread that waits for its own writes (fsync) works in its own name. Within a file, the worker's next one
 * begins a record anew.
 */
#pragma once

#include "thread.bpf.h"

static __always_inline bool writes(struct fief_cpu *cs)
{
	return cs && cs->has_task && cs->task.flags & FIEF_TASK_WRITES;
}

/* The worker is the system's again. */
static __noinline int writer_end(struct task_struct *p)
{
	struct fief_task *v = bpf_task_storage_get(&tasks, p, 0, 0);
	struct fief_cpu *cs;
	unsigned long flags;
	__u64 now;

	if (!v)
		return 0;
	irq_save(&flags);
	cs = this_cpu();
	if (writes(cs) && cs->running == p->pid) {
		now = bpf_ktime_get_ns();
		steal_settle(cs, now);
		charge_until(cs, now);
		cs->has_task = 0;
		set_system(cs, kthread_kind(cs, p));
	}
	irq_restore(&flags);
	member_settle(v, p, true);
	record_end(v);
	bpf_task_storage_delete(&tasks, p);
	return 0;
}

static __noinline int writer_begin(struct task_struct *p, struct fief_ref container)
{
	struct fief_task *v;
	struct fief_cpu *cs;
	unsigned long flags;
	__u64 now;

	if (task_adopt(p, container, FIEF_TASK_WRITES, true))
		return 0;
	v = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!v)
		return 0;
	irq_save(&flags);
	cs = this_cpu();
	/* else it was away since, and came back with its record */
	if (cs && !cs->has_task && cs->running == p->pid) {
		now = bpf_ktime_get_ns();
		steal_settle(cs, now);
		charge_until(cs, now);
		record_load(cs, v);
		cs->current_ = cs->task.binding;
	}
	irq_restore(&flags);
	return 0;
}

static __always_inline int writeback_begin(struct inode *inode)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_file *file = file_of(inode);
	struct fief_cpu *cs;

	if (!(p->flags & PF_KTHREAD))
		return 0;
	cs = this_thread();
	if (writes(cs))
		writer_end(p);
	if (file && cs && !cs->has_task)
		writer_begin(p, file->container);
	return 0;
}

/* Also when these programs are no more those that act: who has begun ends. */
static __always_inline int writeback_end(void)
{
	struct task_struct *p = bpf_get_current_task_btf();

	if (p->flags & PF_KTHREAD && writes(this_thread()))
		writer_end(p);
	return 0;
}
