/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The queue of those that are let in for a moment, and what else the floor finds here: no timer that ends by itself, and no thread that runs. */
#pragma once

#define LATES				   64
#define BPF_F_TIMER_ABS			   1
#define BPF_F_TIMER_CPU_PIN		   2
#define bpf_core_cast(from, type)	   ((type *)(from))
#define bpf_timer_init(timer, map, clock)  0
#define bpf_timer_set_callback(timer, end) ((void)(end))

static bool late_ones[LATES]; /* who is first is last here; whether it is prompt */
static __u32 lates;

static __u64 timer_due_ns; /* of the one that was started last */

static int bpf_timer_start(struct bpf_timer *timer, __u64 ns, __u64 flags)
{
	(void)timer;
	timer_due_ns = flags & BPF_F_TIMER_ABS ? ns : own_clock + ns;
	return 0;
}

static __s32 scx_bpf_dsq_nr_queued(__u64 dsq)
{
	return dsq == DSQ(QUEUE_LATE) && lates ? (__s32)lates : queue_length(dsq);
}

static bool scx_bpf_dsq_move_to_local(__u64 dsq)
{
	if (dsq != DSQ(QUEUE_LATE) || !lates)
		return queue_takes(dsq);
	lates--;
	return true;
}

#include "floor.bpf.h"

static void floor_reset(void)
{
	lates = 0;
}

/* A thread comes to that queue: `prompt` before the others, to be let in at once. */
void floor_late(bool prompt)
{
	struct sched_machine *m = machine_get();

	if (!prompt)
		memmove(late_ones + 1, late_ones, lates * sizeof(*late_ones));
	late_ones[prompt ? lates : 0] = prompt;
	lates++;
	m->late = 1;
	m->prompt += prompt;
	late_paces(m);
}

/* A CPU chooses: 1: lets in one that waited too long, 2: one that is prompt, 0: none. */
__u32 floor_chooses(__u64 now)
{
	struct sched_machine *m = machine_get();
	__u32 before = lates;

	floor_let_in(m, place_in(m, 0), now);
	return lates == before ? 0 : 1 + late_ones[lates];
}
