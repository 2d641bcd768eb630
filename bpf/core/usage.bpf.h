/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reading usage: the record, what the CPUs' caches still hold, and the open stint of every running thread.
 *
 * Problem: the three change while they are read; a reader must never see time twice, nor less than before.
 * How: each CPU's `sequence` tells that a charge was under way; `flushes_begun` and `flushes_done` tell that a cache
 * line moved to the record between the two looks. Then everything is read again, a bounded number of times.
 * Limits: after READ_TRIES the last look stands; it can miss or double one cache line.
 */
#pragma once

#include "bind.bpf.h"

#define READ_TRIES 16

/*
 * The thread that got a CPU unseen (unseen.bpf.h), since when, and what it is bound to. Nobody, or no record: the id is
 * FIEF_NO_ID.
 */
static __always_inline struct fief_ref unseen_look(struct fief_cpu *cs, __u64 *since)
{
	struct fief_ref binding = {FIEF_NO_ID, 0};
	struct task_struct *p, *there;
	struct fief_task *v = NULL;

	if (!bpf_ksym_exists(bpf_task_from_pid))
		return binding;
	there = bpf_core_cast((void *)cs->run_queue, struct rq)->curr;
	if (there->pid == cs->running)
		return binding;
	p = bpf_task_from_pid(there->pid);
	if (!p)
		return binding;
	if (bpf_core_field_exists(p->sched_info.last_arrival)) {
		*since = p->sched_info.last_arrival + cs->clock_offset;
		v = bpf_task_storage_get(&tasks, p, 0, 0);
	}
	if (v)
		binding = v->binding;
	bpf_task_release(p);
	return binding;
}

/* What one CPU holds for a container. */
static __noinline int usage_of_cpu(struct fief_cpu *cs, struct fief_ref ref, __u64 now, struct fief_usage *sum)
{
	int i;
	struct fief_cache_slot slot = {};
	__u64 open, thread = 0, receive = 0;
	__u32 sequence;

	bpf_for (i, 0, READ_TRIES) {
		sequence = *(volatile __u32 *)&cs->sequence;
		barrier();
		slot = cs->cache[ref.id & (FIEF_CACHE_SLOTS - 1)];
		thread = 0;
		receive = 0;
		open = cs->online && now > cs->last_ns ? now - cs->last_ns : 0;
		if (cs->current_.id == FIEF_NO_ID) {
			if (cs->has_task && same_ref(cs->task.home, ref))
				thread = cs->task.pending_ns + open;
		} else if (cs->receive == FIEF_RX_OPEN) {
			if (same_ref(pool_owner(cs), ref))
				receive = cs->pool_ns + open;
		} else if (same_ref(cs->current_, ref)) {
			if (cs->receive)
				receive = open;
			else
				thread = open;
		}
		barrier();
		if (!(sequence & 1) && sequence == *(volatile __u32 *)&cs->sequence)
			break;
	}
	sum->thread_ns += thread;
	sum->receive_ns += receive;
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

/* Since a switch that was missed (unseen.bpf.h) and is not charged yet, the CPU's time is not the noted thread's. */
static __noinline int usage_unseen(struct fief_cpu *cs, struct fief_ref ref, __u64 now, struct fief_usage *sum)
{
	__u64 since = now;
	struct fief_ref unseen = unseen_look(cs, &since);

	if (since >= now || since < cs->last_ns)
		return 0;
	if (same_ref(unseen, ref))
		sum->thread_ns += now - since;
	if (same_ref(cs->current_, ref) && !cs->receive)
		sum->thread_ns -= now - since;
	return 0;
}

static __noinline int usage_read(struct fief_ref ref, struct fief_usage *out)
{
	int i;
	struct fief_container *c = container_get(ref);
	struct fief_usage sum = {};
	__u64 now;

	if (!c)
		return -ESTALE;
	bpf_for (i, 0, READ_TRIES) {
		__u32 done = *(volatile __u32 *)&c->flushes_done, begun = *(volatile __u32 *)&c->flushes_begun;
		__u32 cpu;

		barrier();
		sum = c->usage;
		now = bpf_ktime_get_ns();
		bpf_for (cpu, 0, cpu_count) {
			struct fief_cpu *cs = cpu_at(cpu);

			if (!cs)
				break;
			usage_of_cpu(cs, ref, now, &sum);
			if (task_storage_in_cgroup && cs->run_queue)
				usage_unseen(cs, ref, now, &sum);
		}
		barrier();
		if (begun == done && begun == *(volatile __u32 *)&c->flushes_begun)
			break;
	}
	*out = sum;
	return 0;
}
