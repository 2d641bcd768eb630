/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stuck: a thread that is put to wait while it may not leave its CPU (migrate_disable(), as under a filter of system calls).
 *
 * Problem: the kernel narrows the thread's mask of CPUs only when it switches away from it, which is after it asked where the thread waits.
 * An idle CPU that is woken by the wide mask, or one that is taken from a worse thread, finds nothing that it may run.
 * How: the kernel counts what keeps the thread there. The program that asks is one of these, where it runs on behalf of the thread; not
 * since Linux 6.18 on kernels without PREEMPT_RCU, where preemption is off in it (is_bpf_migration_disabled() of kernel/sched/ext_idle.c).
 */
#pragma once

/* The program's own part of the count. */
static __always_inline __u32 migration_own(const struct task_struct *p)
{
	return LINUX_KERNEL_VERSION < KERNEL_VERSION(6, 18, 0) || bpf_core_field_exists(p->rcu_read_lock_nesting);
}

static __always_inline bool is_stuck(struct task_struct *p)
{
	return bpf_core_field_exists(p->migration_disabled) && p == bpf_get_current_task_btf() &&
	       p->migration_disabled > migration_own(p);
}
