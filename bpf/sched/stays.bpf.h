/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Stays: whether a thread whose slice has ended keeps the CPU from the first one that waits in its container's line. */
#pragma once

#include "policy.bpf.h"
#include "thread.bpf.h"

#define STAYS_SEEN 32 /* threads that may run on other CPUs only */

static __always_inline bool place_stays(struct task_struct *prev, s32 cpu, __u32 id, __u32 queue)
{
	struct sched_waiting *w = waiting_of(prev);
	struct sched_place *here = place_at(cpu);
	struct task_struct *first;
	bool stays = true;
	__u32 seen = 0;
	__u64 place;

	if (!w || !queue || id == FIEF_ROOT)
		return false;
	place_ran(w, prev->se.sum_exec_runtime);
	place = place_take(id, w, prev->scx.weight, bpf_ktime_get_ns());
	bpf_for_each (scx_dsq, first, DSQ(queue - 1), 0) {
		/* the line is in order: whoever follows is behind it too */
		if (is_before(place, first->scx.dsq_vtime))
			break;
		/* after some that may not run here it is left to the search who fits behind them */
		if (bpf_cpumask_test_cpu(cpu, first->cpus_ptr) || ++seen >= STAYS_SEEN) {
			stays = false;
			break;
		}
	}
	if (stays) {
		place_runs(w, prev->se.sum_exec_runtime);
		here->at = w->thread.at;
	}
	return stays;
}
