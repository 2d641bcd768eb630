/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The clocks of a CPU's run queue. Both of what is stolen are 0 while the record of the CPU has not found its run queue.
 */
#pragma once

#include "maps/cpus.bpf.h"

/* with PARAVIRT_TIME_ACCOUNTING only */
struct rq___steal {
	u64 prev_steal_time_rq;
} __attribute__((preserve_access_index));

/* Nanoseconds that the hypervisor took from a CPU, as its run queue knows at its last update (a tick ago or less). */
static __always_inline __u64 queue_steal(struct rq *queue)
{
	if (!bpf_core_field_exists(struct rq___steal, prev_steal_time_rq))
		return 0;
	return bpf_core_cast(queue, struct rq___steal)->prev_steal_time_rq;
}

/* Nanoseconds that it has left out of what it accounts to threads (kernel/sched/core.c update_rq_clock_task). */
static __always_inline __u64 queue_excluded(struct rq *queue)
{
	return queue->clock - queue->clock_task;
}

/* The run queue of a CPU whose record has found it. */
static __always_inline struct rq *queue_of(struct fief_cpu *cs)
{
	return bpf_core_cast((void *)cs->run_queue, struct rq);
}

static __always_inline __u64 steal_clock(struct fief_cpu *cs)
{
	return cs->run_queue ? queue_steal(queue_of(cs)) : 0;
}

static __always_inline __u64 excluded_clock(struct fief_cpu *cs)
{
	return cs->run_queue ? queue_excluded(queue_of(cs)) : 0;
}
