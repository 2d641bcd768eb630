/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Yardstick: about the least that a scheduler can do which is a program. Only the lab loads it, to hold Fief's against.
 *
 * Problem: a part of what Fief's scheduler costs is the kernel's, for calling any program.
 * How: one queue for all threads and CPUs, ordered by virtual time: what a thread ran for, by its weight. A thread that slept is at most a slice
 * behind the queue's clock. This is what the kernel tree's own scx_simple does (tools/sched_ext), in words of our own and without its
 * counters.
 * Limits: it knows no container, no limit and no priority, and a CPU of one NUMA node takes what waits for another.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include "scx.bpf.h"

#define QUEUE	 0
#define SLICE_NS 20000000ull /* the kernel's own default (SCX_SLICE_DFL) */

static __u64 clock; /* the furthest virtual time that has run */

static __always_inline bool is_before(__u64 a, __u64 b)
{
	return (__s64)(a - b) < 0;
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(cpu_selects, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, 0);
	return cpu;
}

SEC("struct_ops/enqueue")
void BPF_PROG(thread_waits, struct task_struct *p, u64 flags)
{
	__u64 at = p->scx.dsq_vtime, least = clock - SLICE_NS;

	scx_bpf_dsq_insert_vtime(p, QUEUE, SLICE_NS, is_before(at, least) ? least : at, flags);
}

SEC("struct_ops/dispatch")
void BPF_PROG(cpu_takes, s32 cpu, struct task_struct *prev)
{
	scx_bpf_dsq_move_to_local(QUEUE);
}

SEC("struct_ops/running")
void BPF_PROG(thread_begins, struct task_struct *p)
{
	if (is_before(clock, p->scx.dsq_vtime))
		clock = p->scx.dsq_vtime;
}

SEC("struct_ops/stopping")
void BPF_PROG(thread_stops, struct task_struct *p, bool runnable)
{
	p->scx.dsq_vtime += (SLICE_NS - p->scx.slice) * 100 / p->scx.weight;
}

SEC("struct_ops/enable")
void BPF_PROG(thread_comes, struct task_struct *p)
{
	p->scx.dsq_vtime = clock;
}

SEC("struct_ops.s/init")
s32 BPF_PROG(queue_begins)
{
	return scx_bpf_create_dsq(QUEUE, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops yardstick_ops = {
    .select_cpu = (void *)cpu_selects,
    .enqueue = (void *)thread_waits,
    .dispatch = (void *)cpu_takes,
    .running = (void *)thread_begins,
    .stopping = (void *)thread_stops,
    .enable = (void *)thread_comes,
    .init = (void *)queue_begins,
    .timeout_ms = 30000,
    .name = "yardstick",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
