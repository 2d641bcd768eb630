/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The one place where kernels differ. Each switch is set by the loader after it tried, each with its reason.
 */
#pragma once

/* 6.12 has no irq-save kfunc. It came with 6.14, which allows no call of a global function while it keeps interrupts off. Without it
 * a softirq can come between two words of a charge in process context: the error is one charge's length, seldom; what is lost is
 * shown by the sum over all containers. It takes no request meanwhile (record_hold). */
extern int LINUX_KERNEL_VERSION __kconfig;
extern void bpf_local_irq_save(unsigned long *flags) __ksym __weak;
extern void bpf_local_irq_restore(unsigned long *flags) __ksym __weak;

/* bpf_task_from_vpid is of 6.14; without it a thread of another pid namespace cannot be bound by number. */
extern struct task_struct *bpf_task_from_vpid(s32 vpid) __ksym __weak;
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *p) __ksym __weak;

/* Walks over threads are of 6.7; without them only the first thread of a process that is moved gets the home of its new cgroup. */
extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task, unsigned int flags) __ksym __weak;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym __weak;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym __weak;

/* 6.12 refuses task storage in cgroup hooks; then only threads of managed units can bind (they have their
 * record). */
const volatile bool task_storage_in_cgroup = true;

/* sum_exec_runtime leaves softirq time out where the kernel accounts interrupts apart (IRQ_TIME_ACCOUNTING).
 */
const volatile bool exec_clock_excludes_softirq = false;

/* task->ioac is there with TASK_IO_ACCOUNTING only: bpf_core_field_exists decides at load. */

#define irqs_can_be_off (bpf_ksym_exists(bpf_local_irq_save) && LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 15, 0))

#define irq_save(flags)                                                                                                \
	do {                                                                                                           \
		if (irqs_can_be_off)                                                                                   \
			bpf_local_irq_save(flags);                                                                     \
	} while (0)
#define irq_restore(flags)                                                                                             \
	do {                                                                                                           \
		if (irqs_can_be_off)                                                                                   \
			bpf_local_irq_restore(flags);                                                                  \
	} while (0)
