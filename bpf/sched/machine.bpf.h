/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Machine: the CPUs that are there, the period in which budgets are given anew, and how all of it begins.
 */
#pragma once

#include "floor.bpf.h"
#include "state.bpf.h"

/* What the core has to know: whether its charges gather for the scheduler, and for how many CPUs a limit is. */
static __always_inline void core_tell(bool on, __u32 cpus)
{
	__u32 cpu;

	bpf_for (cpu, 0, cpu_count) {
		struct fief_cpu *cs = cpu_at(cpu);

		if (!cs)
			break;
		cs->limit_cpus = cpus;
		cs->scheduled = on;
	}
}

/* A CPU that the kernel could not take away after all is not told to come back. */
static __always_inline void cpu_changes(s32 cpu, bool away)
{
	struct sched_machine *m = machine_get();
	struct sched_place *there = place_at(cpu);

	if (!m || !there || there->away == away)
		return;
	there->away = away;
	__sync_fetch_and_add(&m->cpus, away ? -1 : 1);
	core_tell(true, m->cpus);
}

/* Those that are there when the scheduler begins. */
static __always_inline __u32 cpus_count(void)
{
	const struct cpumask *mask = scx_bpf_get_online_cpumask();
	__u32 cpu, count = 0;

	bpf_for (cpu, 0, cpu_count) {
		struct sched_place *there = place_at(cpu);

		if (!there)
			break;
		there->away = !bpf_cpumask_test_cpu(cpu, mask);
		count += !there->away;
	}
	scx_bpf_put_cpumask(mask);
	return count;
}

/* A period has passed: what was held may go on, and what waited too long is found. */
static int period_begins(void *map, int *key, struct sched_machine *m)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 cpu;
	int left;

	m->must_look = m->serving != 0;
	if (scx_bpf_dsq_nr_queued(DSQ(QUEUE_KERNEL)) > 0)
		m->kernel = 1;
	if (scx_bpf_dsq_nr_queued(DSQ(QUEUE_LATE)) > 0)
		m->late = 1;
	left = held_leave(m, now);
	if (foreign_look(m) || left || m->must_look || m->held || m->kernel || m->late) {
		m->held = 0;
		bpf_for (cpu, 0, cpu_count)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	m->beats++;
	if (m->beats % FLOOR_BEATS == 0 && floor_look(m, now)) {
		bpf_for (cpu, 0, cpu_count)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	bpf_timer_start(&m->timer, PERIOD_NS, 0);
	return 0;
}

static __always_inline s32 machine_begins(void)
{
	struct sched_machine *m = machine_get();
	__u32 number, at;
	s32 err;

	if (!m)
		return -ENOENT;
	err = scx_bpf_create_dsq(DSQ(QUEUE_LATE), -1);
	if (!err)
		err = scx_bpf_create_dsq(DSQ(QUEUE_KERNEL), -1);
	if (!err)
		err = scx_bpf_create_dsq(DSQ(QUEUE_HELD), -1);
	if (err)
		return err;
	bpf_for (number, 0, QUEUES) {
		err = scx_bpf_create_dsq(DSQ(number), -1);
		if (err)
			return err;
		/* low numbers are taken first, so that few have to be looked at */
		at = number;
		if (number != QUEUE_ROOT) {
			__u32 value = QUEUES - number;

			at = number - 1;
			bpf_map_update_elem(&sched_free, &at, &value, BPF_ANY);
		}
	}
	m->free = QUEUES - 1;
	m->top = 1;
	m->cpus = cpus_count();
	core_tell(true, m->cpus);
	err = bpf_timer_init(&m->timer, &sched_machines, CLOCK_MONOTONIC);
	if (err)
		return err;
	bpf_timer_set_callback(&m->timer, period_begins);
	err = moments_begin();
	if (err)
		return err;
	return bpf_timer_start(&m->timer, PERIOD_NS, 0);
}
