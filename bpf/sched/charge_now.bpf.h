/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Charge now: the core's charge of the running thread, asked for by the scheduler.
 *
 * Problem: what a thread does that follows its sockets is charged to nobody until it touches one. One that touches none, and does not sleep,
 * would go first for ever, and no limit would hold.
 * How: what is open for longer than OPEN_MOST_NS is its home's.
 * Limits: of a request that one thread reads and another one works on for longer than that, before it sends, so much is not its client's.
 */
#pragma once

#include "core/stint.bpf.h"

#define OPEN_MOST_NS 40000000

/* The running thread's time up to now is charged. Interrupts are off. */
__noinline int charge_now(__u64 now)
{
	struct fief_cpu *cs = this_cpu();

	ring_look(cs, now);
	if (cs && cs->online && !cs->in_irq && !cs->softirq_vector)
		charge_until(cs, now);
	return 0;
}

/* Settles what the thread that runs, or has just run, has open for longer than that. Interrupts are off. */
__noinline int open_settle(struct task_struct *p __arg_trusted)
{
	struct fief_cpu *cs = this_cpu();

	if (!cs || !cs->has_task || cs->running != p->pid || cs->in_irq || cs->softirq_vector)
		return 0;
	if (cs->current_.id == FIEF_NO_ID && cs->task.pending_ns > OPEN_MOST_NS)
		pending_settle(cs, cs->task.home);
	return 0;
}
