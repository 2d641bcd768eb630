/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Kthread: the kernel's own threads.
 *
 * Problem: what they do is everybody's, so they go first. But two of them that never sleep (lanes under a flood, encryption) would keep
 * everybody else from their CPU, by turns.
 * How: one that wakes up goes first, for a slice. One that has had its slice waits in a queue of its own, which has the CPU in turn with
 * the tree: a slice of it, then as long the tree's, and it has all that the tree leaves.
 * Limits: one that sleeps within each slice goes first each time, as long as it works.
 */
#pragma once

#include "state.bpf.h"
#include "stuck.bpf.h"

static __always_inline void kthread_waits(struct task_struct *p, __u64 flags)
{
	struct sched_place *there = place_at(scx_bpf_task_cpu(p));
	struct sched_machine *m = machine_get();
	s32 idle;

	if (flags & (SCX_ENQ_WAKEUP | SCX_ENQ_LAST)) {
		/* a slice that is taken from another one of its kind would make that one wait as if it had had it */
		if (flags & SCX_ENQ_WAKEUP && there->rank != ~0u)
			flags |= SCX_ENQ_PREEMPT;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, flags);
		if (flags & SCX_ENQ_LAST)
			scx_bpf_kick_cpu(scx_bpf_task_cpu(p), 0);
		return;
	}
	scx_bpf_dsq_insert(p, DSQ(QUEUE_KERNEL), SLICE_NS, flags);
	m->kernel = 1;
	idle = is_stuck(p) ? -ENOENT : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
}

/* Gives the CPU to the first one that had its slice. */
static __always_inline bool kthread_take(struct sched_machine *m, struct sched_place *here, __u64 now)
{
	if (!*(volatile __u32 *)&m->kernel)
		return false;
	if (scx_bpf_dsq_move_to_local(DSQ(QUEUE_KERNEL))) {
		here->kernel_ns = now;
		return true;
	}
	/* the kernel inserts one after kthread_waits() has said so: what is missed here is seen by the next beat */
	__sync_lock_test_and_set(&m->kernel, 0);
	if (scx_bpf_dsq_nr_queued(DSQ(QUEUE_KERNEL)) > 0)
		m->kernel = 1;
	return false;
}

/* The same, if the tree has had the CPU for as long as a slice since one of them had it. */
static __always_inline bool kthread_let_in(struct sched_machine *m, struct sched_place *here, struct task_struct *prev,
					   __u64 now)
{
	if (prev && prev->flags & PF_KTHREAD && prev->scx.flags & SCX_TASK_QUEUED)
		here->kernel_ns = now; /* one that goes to sleep has had less */
	return (__s64)(now - here->kernel_ns) >= (__s64)SLICE_NS && kthread_take(m, here, now);
}
