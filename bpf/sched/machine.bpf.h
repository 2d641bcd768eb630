/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Machine: the CPUs that are there, the period in which budgets are given anew, and how all of it begins.
 */
#pragma once

#include "floor.bpf.h"
#include "idle.bpf.h"
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

	if (there->away == away)
		return;
	there->away = away;
	if (away)
		idle_ends(m, there);
	else
		idle_begins(m, there);
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

		there->away = !bpf_cpumask_test_cpu(cpu, mask);
		there->idle = !there->away; /* as far as is known */
		count += !there->away;
	}
	scx_bpf_put_cpumask(mask);
	return count;
}

/* What the CPUs took from the front since the last beat. */
static __always_inline void picked_count(void)
{
	struct fief_sched *state = state_get();
	__u32 cpu, picked;

	bpf_for (cpu, 0, cpu_count) {
		struct sched_place *there = place_at(cpu);

		if (!state)
			break;
		picked = *(volatile __u32 *)&there->picked - there->told;
		if (!picked)
			continue;
		there->told += picked;
		__sync_fetch_and_add(&state->picked, picked);
	}
}

/*
 * The next beat. They are PERIOD_NS apart, however late one of them is: a container that waits for its budget comes to it at a beat, and
 * what it is late by would be lost to it. What fell due while one was dealt with waits for the next.
 */
static __always_inline long beat_follows(struct sched_machine *m, struct sched_beat *beat, __u64 now)
{
	m->beat_ns += (now - m->beat_ns) / PERIOD_NS * PERIOD_NS;
	return bpf_timer_start(&beat->timer, m->beat_ns + PERIOD_NS, BPF_F_TIMER_ABS);
}

/* A period has passed: what was held may go on, and what waited too long is found. */
static int period_begins(void *map, int *key, struct sched_beat *beat)
{
	struct sched_machine *m = machine_get();
	__u64 now = bpf_ktime_get_ns();
	__u32 cpu;
	int left;

	m->now_ns = now;
	picked_count();
	idle_beats(m);
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
	beat_follows(m, beat, bpf_ktime_get_ns());
	return 0;
}

static __always_inline s32 machine_begins(void)
{
	struct sched_machine *m = machine_get();
	__u32 number, at, zero = 0;
	struct sched_beat *beat = bpf_map_lookup_elem(&sched_beats, &zero);
	s32 err;

	if (!beat)
		return -ENOENT;
	err = scx_bpf_create_dsq(DSQ(QUEUE_LATE), -1);
	if (!err)
		err = scx_bpf_create_dsq(DSQ(QUEUE_KERNEL), -1);
	if (!err)
		err = scx_bpf_create_dsq(DSQ(QUEUE_HELD), -1);
	if (!err)
		err = scx_bpf_create_dsq(DSQ(QUEUE_FRONT), -1);
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
	m->now_ns = bpf_ktime_get_ns();
	m->late_step_ns = STEP_MOST_NS;
	m->cpus = cpus_count();
	m->idle = m->cpus;
	core_tell(true, m->cpus);
	err = bpf_timer_init(&beat->timer, &sched_beats, CLOCK_MONOTONIC);
	if (err)
		return err;
	bpf_timer_set_callback(&beat->timer, period_begins);
	err = moments_begin();
	if (err)
		return err;
	m->beat_ns = bpf_ktime_get_ns();
	return beat_follows(m, beat, m->beat_ns);
}
