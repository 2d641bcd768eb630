/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steal: what of a thread's wall clock the hypervisor had.
 *
 * Problem: the wall clock between two switches holds the thread's own time, softirqs on top of it and stolen time; the kernel's
 * own account of the thread (sum_exec_runtime) separates the last from the others.
 * How: at every boundary the run queue's steal clock tells the steal since the one before. At the switch, the wall clock and
 * the kernel's account of the stint tell the rest, to the nanosecond. A remainder that exceeds the stint's uncharged end is
 * carried to the thread's next stint, so that per thread the charges equal the kernel's account.
 * Limits: the run queue knows of steal up to a tick late; such steal is taken from the container bound last. Where the kernel leaves
 * interrupts out of its accounts of threads (IRQ_TIME_ACCOUNTING), interrupts without a handler (the local timer, calls of other
 * CPUs) count as stolen, as does the way into and out of the others.
 */
#pragma once

#include "charge.bpf.h"
#include "run_queue.bpf.h"

#define EXEC_UNKNOWN ~0ull	   /* of switched_in_exec; a new thread begins with 0 */
#define STEAL_MAX_NS 10000000000ll /* more is a clock that jumped, not a hypervisor */

/*
 * The time stolen since the last look, by both clocks. The kernel forgets the part that it learns too late, and so do we: else
 * a container lacked what its threads' own clocks have.
 */
static __always_inline __s64 steal_since(struct fief_cpu *cs, __u64 steal, __u64 excluded)
{
	__s64 stolen = steal - cs->steal_seen, most = excluded - cs->excluded;

	if (stolen > most)
		stolen = most;
	return stolen > 0 ? stolen : 0;
}

static __always_inline void steal_note(struct fief_cpu *cs)
{
	cs->steal_seen = steal_clock(cs);
	cs->excluded = excluded_clock(cs);
	cs->stint_stolen = 0;
}

/*
 * Steal that became known since the last look is not the thread's: it comes out of the uncharged time, and what does not
 * fit waits for the next look. Interrupts are off.
 */
static __always_inline void steal_settle(struct fief_cpu *cs, __u64 now)
{
	__u64 known = steal_clock(cs);
	__s64 stolen, room = now - cs->last_ns;

	if (known == cs->steal_seen || room <= 0 || cs->switched_in_exec == EXEC_UNKNOWN)
		return;
	stolen = steal_since(cs, known, excluded_clock(cs));
	cs->steal_seen = known;
	if (stolen > room) {
		cs->steal_seen -= stolen - room;
		stolen = room;
	}
	cs->excluded += stolen;
	cs->stint_stolen += stolen;
	charge_take(cs, (struct fief_ref){FIEF_STEAL, 0}, stolen, now);
}

static __always_inline bool is_kthread(struct task_struct *p)
{
	return p->pid && p->flags & PF_KTHREAD;
}

/* Up to when the wall clock of the stint is its thread's by the kernel's account of it, or known to be stolen. */
static __always_inline __u64 accounted_until(struct fief_cpu *cs, struct task_struct *p)
{
	__u64 until = cs->switched_in_ns + (p->se.sum_exec_runtime - cs->switched_in_exec) + cs->stint_stolen;

	return exec_clock_excludes_softirq ? until + cs->softirq_ns : until;
}

/* What of the stint's wall clock is neither. False: that cannot be known. */
static __always_inline bool stint_lacks(struct fief_cpu *cs, struct task_struct *prev, __u64 now, __s64 *lacks)
{
	if (cs->switched_in_exec == EXEC_UNKNOWN)
		return false;
	if (is_kthread(prev)) {
		/*
		 * Those that receive are not preempted: what they do after the wake-up of another thread, the kernel
		 * accounts to that one (switch.bpf.h, clock_late). Their own clocks cannot tell what was stolen.
		 */
		*lacks = excluded_clock(cs) - cs->excluded;
		if (exec_clock_excludes_softirq)
			*lacks -= cs->softirq_ns;
	} else {
		*lacks = now - accounted_until(cs, prev);
	}
	return *lacks <= STEAL_MAX_NS && *lacks >= -STEAL_MAX_NS;
}

/* Takes what the hypervisor had out of the uncharged end of the stint. */
static __always_inline void steal_take(struct fief_cpu *cs, struct task_struct *prev, __u64 now)
{
	__s64 stolen, room = now - cs->last_ns, *carry = cs->has_task ? &cs->task.carry_ns : &cs->carry_ns;

	if (!stint_lacks(cs, prev, now, &stolen))
		return;
	if (room < 0)
		room = 0;
	stolen += *carry;
	*carry = 0;
	if (stolen > room || stolen < 0) {
		*carry = stolen < 0 ? stolen : stolen - room;
		stolen = stolen < 0 ? 0 : room;
	}
	charge_take(cs, (struct fief_ref){FIEF_STEAL, 0}, stolen, now);
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
	charge_take(cs, (struct fief_ref){FIEF_STEAL, 0}, taken, now);
}
