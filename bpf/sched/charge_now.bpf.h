/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Charge now: the core's charge of the running thread, asked for by the scheduler. */
#pragma once

#include "core/stint.bpf.h"

/* The running thread's time up to now is charged. Interrupts are off. */
__noinline int charge_now(__u64 now)
{
	struct fief_cpu *cs = this_cpu();

	ring_look(cs, now);
	if (cs && cs->online && !cs->in_irq && !cs->softirq_vector)
		charge_until(cs, now);
	return 0;
}
