/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Pause: no CPU time is charged while nobody needs it.
 *
 * Problem: every context switch, softirq and interrupt of the machine passes the programs that charge. Where no process is managed and
 * the policy only admits and refuses, nobody asks what they find.
 * How: user space detaches them, and attaches them before somebody needs them (bpf/src/charging.rs). Before it detaches them it says
 * that there is a pause, and has each CPU close its record: what is open there is charged up to that moment, and the record becomes as
 * it was before the CPU's first event. So accounts have all of the time up to the pause and nothing of the pause, and no reader sees a
 * counter go back. A program that is still attached leaves a closed record alone; once the pause is over, the CPU's next event is its
 * first.
 * Limits: a CPU that is not there cannot close its record, and has no events: its time is idle time, in the pause too. Where interrupts
 * cannot be off (compat.bpf.h), it can close in the midst of a charge: the error is that one's length.
 */
#pragma once

#include "stint.bpf.h"
#include "maps/loads.bpf.h"

/* Nothing of what was open is left. What the CPU cached and kept, and what it found out of the machine, stays. */
static __always_inline void cpu_forget(struct fief_cpu *cs)
{
	charge_begin(cs);
	cs->online = 0;
	cs->current_ = (struct fief_ref){FIEF_ROOT, 0};
	cs->receive = FIEF_RX_NONE;
	cs->softirq_vector = 0;
	cs->in_irq = 0;
	cs->has_task = 0;
	cs->recalled = 0;
	cs->refresh = 0;
	cs->running = 0;
	cs->thread = 0;
	cs->switches = 0;
	cs->switched_in_ns = 0;
	cs->switched_in_exec = EXEC_UNKNOWN;
	cs->softirq_ns = 0;
	cs->carry_ns = 0;
	cs->ran_before = 0;
	cs->discards = 0;
	/* clocks drift, and numbers of threads are used again */
	cs->clock_from = 0;
	cs->clock_offset = 0;
	cs->clock_next = 0;
	cs->kthread = 0;
	for (int i = 0; i < FIEF_RECENT; i++)
		cs->recent[i].thread = 0;
	charge_end(cs);
}

/* The CPU that this runs on is charged up to now, and no longer. */
static __always_inline int cpu_close(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = this_cpu();
	unsigned long flags;
	__u64 now;

	ring_look(cs, 0);
	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->online) {
		now = bpf_ktime_get_ns();
		steal_settle(cs, now);
		charge_until(cs, now);
		pool_close(cs);
		if (cs->has_task)
			pending_settle(cs, cs->task.home);
		if (cs->has_task && cs->running == p->pid)
			task_leave(cs, p, false, false);
		cpu_forget(cs);
	}
	irq_restore(&flags);
	return 0;
}

/*
 * There is a pause from now on, or, with a->flags, none. How busy the CPUs were is not known of a pause: no listener's load goes by what
 * it saw of them before.
 */
static __always_inline int admin_pause(const struct fief_admin *a)
{
	__u32 zero = 0, listener, *paused = bpf_map_lookup_elem(&charge_pauses, &zero);

	if (!paused)
		return -ENOENT;
	*(volatile __u32 *)paused = !a->flags;
	if (!a->flags)
		return 0;
	bpf_for (listener, 0, FIEF_MAX_LISTENERS) {
		struct fief_load *load = bpf_map_lookup_elem(&loads, &listener);

		if (!load)
			break;
		load->cpus = 0;
		load->cpu_ppm = 0;
	}
	return 0;
}
