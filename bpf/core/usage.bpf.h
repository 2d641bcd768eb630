/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reading usage: the record, the charges in the CPUs' caches, and the open stint of every running thread.
 *
 * Problem: the three change while they are read; a reader must never see time twice, nor less than before.
 * How: each CPU's `sequence` tells that a charge was under way; `flushes_begun` and `flushes_done` tell that a cache line moved
 * to the record between the two looks. Then everything is read again, a bounded number of times.
 * Limits: the open stint of a thread with a ring is left out: only its own CPU can tell whose it is (ring.bpf.h).
 * While the hypervisor has a CPU, the kernel does not know yet that it does: the open stint goes on, and a later reader is told less.
 * After READ_TRIES the last look stands; it can miss or double charges that moved during it.
 */
#pragma once

#include "record.bpf.h"

#define READ_TRIES 16

/* One look at a CPU; all of it is of one moment. */
struct cpu_look {
	struct fief_ref current; /* whose the time since last_ns is, if it is a thread's */
	__u64 last_ns;
	__u64 since;   /* the thread that is there got the CPU */
	__s64 stolen;  /* known to the run queue, and not to us yet */
	__s32 noted;   /* the thread that is noted */
	__s32 running; /* the thread that is there */
};

static __always_inline void running_look(struct fief_cpu *cs, struct cpu_look *look)
{
	struct rq *queue = bpf_core_cast((void *)cs->run_queue, struct rq);
	struct task_struct *running = queue->curr;

	look->noted = cs->running;
	look->running = running->pid;
	look->stolen = 0;
	if (cs->switched_in_exec != EXEC_UNKNOWN)
		look->stolen = steal_since(cs, queue_steal(queue), queue_excluded(queue));
	if (bpf_core_field_exists(running->sched_info.last_arrival))
		look->since = running->sched_info.last_arrival + cs->clock_offset;
}

/* What a thread is bound to that is not noted; no record: the id is FIEF_NO_ID. */
static __always_inline struct fief_ref binding_of(__s32 pid)
{
	struct fief_ref binding = {FIEF_NO_ID, 0};
	struct task_struct *p;
	struct fief_task *v;

	if (!bpf_ksym_exists(bpf_task_from_pid))
		return binding;
	p = bpf_task_from_pid(pid);
	if (!p)
		return binding;
	v = bpf_task_storage_get(&tasks, p, 0, 0);
	if (v)
		binding = v->binding;
	bpf_task_release(p);
	return binding;
}

/*
 * What the CPU will find out at its next boundary is not the noted thread's: what the hypervisor took, and what ran since a
 * switch that was missed (unseen.bpf.h).
 */
static __always_inline void look_settle(struct cpu_look *look, struct fief_ref ref, __u64 now, struct fief_usage *sum)
{
	bool noted = same_ref(look->current, ref);
	__s64 open = now - look->last_ns;

	if (open <= 0)
		return;
	if (look->running == look->noted) {
		if (look->stolen > open)
			look->stolen = open;
		if (noted)
			sum->thread_ns -= look->stolen;
		if (ref.id == FIEF_STEAL)
			sum->thread_ns += look->stolen;
		return;
	}
	if (look->since >= now || look->since < look->last_ns)
		return;
	if (noted)
		sum->thread_ns -= now - look->since;
	if (same_ref(binding_of(look->running), ref))
		sum->thread_ns += now - look->since;
}

/* What one CPU holds for a container. */
static __noinline int usage_of_cpu(struct fief_cpu *cs, struct fief_ref ref, __u64 now, struct fief_usage *sum)
{
	int i;
	struct fief_cache_slot slot = {};
	__u64 open, thread = 0, receive = 0;
	bool looks = task_storage_in_cgroup && cs->run_queue;
	struct cpu_look look = {};
	__u32 sequence;

	bpf_for (i, 0, READ_TRIES) {
		sequence = *(volatile __u32 *)&cs->sequence;
		barrier();
		slot = cs->cache[ref.id & (FIEF_CACHE_SLOTS - 1)];
		thread = 0;
		receive = 0;
		look.current = (struct fief_ref){FIEF_NO_ID, 0};
		look.last_ns = cs->online ? cs->last_ns : now;
		open = now > look.last_ns ? now - look.last_ns : 0;
		if (cs->current_.id == FIEF_NO_ID) {
			if (cs->has_task && same_ref(cs->task.home, ref))
				thread = cs->task.pending_ns + open;
		} else if (is_pooled(cs)) {
			if (same_ref(pool_owner(cs), ref))
				receive = cs->pool_ns + open;
		} else if (cs->receive) {
			if (same_ref(cs->current_, ref))
				receive = open;
		} else if (!ring_counts(cs)) {
			look.current = cs->current_;
			if (same_ref(cs->current_, ref))
				thread = open;
		}
		if (looks)
			running_look(cs, &look);
		barrier();
		if (!(sequence & 1) && sequence == *(volatile __u32 *)&cs->sequence)
			break;
	}
	sum->thread_ns += thread;
	sum->receive_ns += receive;
	if (looks)
		look_settle(&look, ref, now, sum);
	if (slot.container.id != ref.id)
		return 0;
	if (slot.container.generation != ref.generation)
		return 0;
	sum->thread_ns += slot.thread_ns;
	sum->receive_ns += slot.receive_ns;
	sum->packets_in += slot.packets_in;
	sum->bytes_in += slot.bytes_in;
	sum->packets_out += slot.packets_out;
	sum->bytes_out += slot.bytes_out;
	return 0;
}

static __noinline int usage_read(struct fief_ref ref, struct fief_usage *sum)
{
	int i;
	struct fief_container *c = container_get(ref);
	__u64 now;

	if (!c)
		return -ESTALE;
	bpf_for (i, 0, READ_TRIES) {
		__u32 done = *(volatile __u32 *)&c->flushes_done, begun = *(volatile __u32 *)&c->flushes_begun;
		__u32 cpu;

		barrier();
		*sum = c->usage;
		now = bpf_ktime_get_ns();
		bpf_for (cpu, 0, cpu_count) {
			struct fief_cpu *cs = cpu_at(cpu);

			if (!cs)
				break;
			usage_of_cpu(cs, ref, now, sum);
		}
		barrier();
		if (begun == done && begun == *(volatile __u32 *)&c->flushes_begun)
			break;
	}
	return 0;
}
