/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Unseen: switches that the kernel made without running our programs.
 *
 * Problem: there are guests where patched kernel text is not the same in all address spaces (docs/kernel-facts.md). Switches
 * away from some threads, and from an idle CPU whose last thread was one of them, run no program; ftrace misses the same.
 * How: the next boundary finds another thread than was noted. The kernel's own accounts tell the rest: the former thread's run
 * time, the present one's start on the CPU, and the run time of all threads of this CPU together (the root of cpuacct). Run
 * time of no known thread is unattributed, the rest was idle.
 * Limits: a CPU reads its account only once a switch was missed there; without cpuacct that time counts as idle.
 */
#pragma once

#include "stint.bpf.h"

#define STINT_TICK_MAX_NS 20000000 /* accounts of a running thread are brought up to date at each tick */

/* One word of each CPU: where it lies tells where a CPU's own memory begins. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} own_word SEC(".maps");

/* Bytes from the address of a per-CPU variable to this CPU's copy; 0: not known. (include/linux/percpu-defs.h) */
static __always_inline __u64 own_memory(void)
{
	const __u32 pointers = bpf_core_field_offset(struct bpf_array, pptrs);
	void *array = bpf_core_cast(&own_word, struct bpf_array), *mine;
	__u64 word = 0, address = 0;
	__u32 zero = 0;

	mine = bpf_map_lookup_elem(&own_word, &zero);
	/* the second read makes a number of the pointer: the verifier lets nobody count with the other */
	if (!mine || bpf_probe_read_kernel(&word, sizeof(word), array + pointers) ||
	    bpf_probe_read_kernel(&address, sizeof(address), &mine))
		return 0;
	return address - word;
}

/* The root of the group of version 1 that accounts CPU time, in the form in which the kernel keeps it in any case. */
static __noinline __u64 run_clock_find(struct task_struct *p)
{
	struct cgroup_subsys_state *css, *above;
	struct cpuacct *root;
	int i;

	if (!bpf_core_type_exists(struct cpuacct) ||
	    !bpf_core_enum_value_exists(enum cgroup_subsys_id, cpuacct_cgrp_id))
		return 0;
	css = BPF_CORE_READ(p, cgroups, subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpuacct_cgrp_id)]);
	bpf_for (i, 0, 64) {
		above = css ? BPF_CORE_READ(css, parent) : NULL;
		if (!above)
			break;
		css = above;
	}
	if (!css)
		return 0;
	root = container_of(css, struct cpuacct, css);
	return (__u64)BPF_CORE_READ(root, cpuusage) + own_memory();
}

/*
 * Nanoseconds that threads ran on this CPU, all together, as accounted up to now (kernel/sched/cpuacct.c). Read as a structure that
 * begins with such a number: every switch reads it, and a helper costs ten times a load.
 */
static __always_inline __u64 run_clock(struct fief_cpu *cs)
{
	return bpf_core_cast((void *)cs->run_clock, struct timespec64)->tv_sec;
}

/* The part of it that is `p`'s since it got the CPU. */
static __always_inline __u64 stint_part(struct task_struct *p)
{
	return p->pid ? p->se.sum_exec_runtime - p->se.prev_sum_exec_runtime : 0;
}

/* A stint begins; `part` of it is accounted already. */
static __always_inline void run_note(struct fief_cpu *cs, __u64 part)
{
	if (cs->run_clock)
		cs->ran_before = run_clock(cs) - part;
}

/* What threads ran here since the stint began, but for the last `part`; `otherwise`, if that is not known. */
static __always_inline __s64 ran_since(struct fief_cpu *cs, __u64 part, __s64 otherwise)
{
	__s64 ran;

	if (!cs->run_clock || !cs->ran_before)
		return otherwise;
	ran = run_clock(cs) - cs->ran_before - part;
	return ran > 0 ? ran : 0;
}

/*
 * The thread that left unseen: its record is written back. Returns when it had used up what the kernel has accounted to
 * it; `now` if that cannot be known.
 */
static __always_inline __u64 departure_settle(struct fief_cpu *cs, __u64 now)
{
	struct task_struct *gone;
	__u64 end = now;

	if (!cs->running)
		return cs->switched_in_ns;
	if (!bpf_ksym_exists(bpf_task_from_pid))
		return now;
	gone = bpf_task_from_pid(cs->running);
	if (!gone)
		return now;
	if (cs->has_task)
		task_leave(cs, gone, true, false);
	if (cs->switched_in_exec != EXEC_UNKNOWN)
		end = accounted_until(cs, gone);
	bpf_task_release(gone);
	return end;
}

/*
 * A stint that is met in its midst: from when on the kernel's account of the thread (kernel/sched/fair.c update_curr) and
 * the wall clock can be compared. Where that is not known, nobody asks what was stolen from it.
 */
static __always_inline void stint_join(struct fief_cpu *cs, struct task_struct *p, __u64 part, __u64 now)
{
	__u64 from = p->se.exec_start + excluded_clock(cs) + cs->clock_offset;
	bool known = p->pid && cs->clock_offset && now - from < STINT_TICK_MAX_NS;

	run_note(cs, known ? 0 : part);
	stint_begin(cs, p, known ? from : cs->last_ns, known ? p->se.sum_exec_runtime : EXEC_UNKNOWN);
}

/*
 * The noted thread under another number: by exec it has become its process's leader (fs/exec.c de_thread), in the midst of a
 * stint. Another thread, whose record lies where that of one lay that left unseen, has not switched as often, or never led none.
 */
static __always_inline bool thread_renamed(struct fief_cpu *cs, struct task_struct *p)
{
	return cs->has_task && cs->thread == (__u64)p && p->pid == p->tgid && !cs->task.leads &&
	       switches_of(p) - cs->switches <= 1;
}

/*
 * A switch to `p` that the kernel did not tell of. What is gone ran until its account was used up, and `p` since it got the
 * CPU; between the two others ran unseen, or none. Interrupts are off.
 */
static __noinline int switch_missed(struct fief_cpu *cs, struct task_struct *p, __u64 now)
{
	__u64 gone, begin = now, part = stint_part(p);
	__s64 unseen;

	if (thread_renamed(cs, p)) {
		cs->running = p->pid;
		cs->recalled = 0; /* by the former number */
		return 0;
	}
	gone = departure_settle(cs, now);
	count_error(FIEF_ERR_SWITCH);
	if (p->pid && cs->clock_offset)
		begin = p->sched_info.last_arrival + cs->clock_offset;
	else if (!p->pid)
		begin = gone;
	if (begin > now)
		begin = now;
	if (gone > begin)
		gone = begin;
	unseen = ran_since(cs, part, 0) - (__s64)(gone - cs->switched_in_ns);
	charge_until(cs, gone);
	pool_close(cs);
	cs->has_task = 0;
	cs->receive = FIEF_RX_NONE;
	charge_take(cs, (struct fief_ref){FIEF_UNATTRIBUTED, 0}, unseen, begin);
	cs->current_ = (struct fief_ref){FIEF_IDLE, 0};
	charge_until(cs, begin);
	if (!cs->run_clock)
		cs->run_clock = run_clock_find(p);
	stint_join(cs, p, part, now);
	return 0;
}

/* The thread is the one that was noted, and was away meanwhile: others ran unseen, or none. Interrupts are off. */
static __always_inline void absence_settle(struct fief_cpu *cs, struct task_struct *p, __u64 now)
{
	__s64 away, unseen;

	count_error(FIEF_ERR_SWITCH);
	if (!stint_lacks(cs, p, now, &away))
		return;
	unseen = ran_since(cs, p->se.sum_exec_runtime - cs->switched_in_exec, away);
	if (unseen > away)
		unseen = away;
	charge_take(cs, (struct fief_ref){FIEF_UNATTRIBUTED, 0}, unseen, now);
	charge_take(cs, (struct fief_ref){FIEF_IDLE, 0}, away - unseen, now);
}

/* The CPU was idle, but for what ran unseen. Interrupts are off. */
static __always_inline void idle_settle(struct fief_cpu *cs, __u64 now)
{
	charge_take(cs, (struct fief_ref){FIEF_UNATTRIBUTED, 0}, ran_since(cs, 0, 0), now);
}

/* The end of a stint whose thread was away unseen, or is not the one that was noted; or of idleness. */
static __noinline int stint_end_unseen(struct fief_cpu *cs, struct task_struct *prev, __u64 now, bool sleeps, bool dead)
{
	bool noted = cs->running == prev->pid;

	if (noted && prev->pid) {
		steal_settle(cs, now);
		absence_settle(cs, prev, now);
	} else if (noted) {
		idle_settle(cs, now);
	} else {
		switch_missed(cs, prev, now);
		steal_settle(cs, now); /* of a thread that only bears another number */
		if (prev->pid)
			steal_take(cs, prev, now);
		else
			idle_settle(cs, now);
	}
	stint_end(cs, prev, now, false, sleeps, dead);
	return 0;
}

/* This CPU's record, and the running thread's in it. */
static __always_inline struct fief_cpu *this_thread(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = this_cpu();
	unsigned long flags;

	if (cs && cs->running != p->pid && cs->online && !cs->softirq_vector && !cs->in_irq) {
		irq_save(&flags);
		switch_missed(cs, p, bpf_ktime_get_ns());
		irq_restore(&flags);
	}
	return cs;
}
