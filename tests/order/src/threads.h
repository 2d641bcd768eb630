/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Threads that wait, and what the scheduler's parts that know them find here. */
#pragma once

#define KERNEL_VERSION(a, b, c)	     (((a) << 16) + ((b) << 8) + (c))
#define bpf_core_field_exists(field) (preempt_rcu || !strstr(#field, "rcu_read_lock_nesting"))
/* of records */
#define RECORD_MADE	 1
#define REQUEST_CLOSED	 1
#define REQUEST_ID(word) ((__u32)(word))

static struct task_struct *running;
static int LINUX_KERNEL_VERSION;
static bool preempt_rcu;
static struct sched_waiting threads[THREADS];
static struct fief_task stored[THREADS];
static struct fief_cpu records[CPUS]; /* only where a CPU has a thread (cpus.h) */

static struct task_struct *bpf_get_current_task_btf(void)
{
	return running;
}

static void *bpf_task_storage_get(const void *map, struct task_struct *p, void *value, __u64 flags)
{
	int number = task_number(p);

	(void)value, (void)flags;
	return map == &sched_threads && number >= 0 ? &threads[number] : NULL;
}

static struct fief_cpu *cpu_at(__u32 cpu)
{
	return cpu < CPUS ? &records[cpu] : NULL;
}

static struct fief_task *record_of(struct task_struct *p)
{
	int number = task_number(p);

	return number >= 0 ? &stored[number] : NULL;
}

static struct fief_ref ref_of(__u32 id)
{
	return (struct fief_ref){id, container_at(id)->generation};
}

#include "stuck.bpf.h"
#include "thread.bpf.h"
#include "climbs.bpf.h"

static struct fief_sched state;

/* What the operator's policy names; */
void threads_named(__u32 id)
{
	table[id].flags = FIEF_CONTAINER_POLICY;
}

/* what is a user's own parent. */
void threads_of_user(__u32 id)
{
	table[id].flags = FIEF_CONTAINER_USER;
}

/* It works for `bound`, has the part of `part`, and begins to wait. In whose line. */
__u32 threads_wait(__u32 thread, __u32 bound, __u32 part)
{
	struct sched_waiting *w = &threads[thread];

	w->bound = bound;
	w->allocation = ref_of(part);
	w->foreign = part != bound;
	wait_begin(w, part, 1);
	return w->container - 1;
}

/* It has just begun to wait: when it is asked again, since it is held below its line; 0: it is not. */
__u64 threads_held(__u32 thread, __u64 now)
{
	held_until_ns = 0;
	climber_waits(NULL, &threads[thread], now, 0);
	return held_until_ns;
}

bool threads_waits(__u32 thread)
{
	return threads[thread].container;
}

/* It runs by what it was given (core/served.bpf.h): that one's use of the CPU, and against the limits of its own container. */
void threads_run(__u32 thread, __u64 ns)
{
	const struct sched_waiting *w = &threads[thread];
	__u32 id;

	order_charge(w->allocation.id, ns);
	for (id = w->allocation.id; id != FIEF_ROOT; id = table[id].parent.id)
		table[id].unlimited_ns += ns;
	for (id = w->bound; id != FIEF_ROOT; id = table[id].parent.id)
		table[id].unlimited_ns -= ns;
}

/* Whether it would give the CPU back as it begins to run. */
bool threads_give_back(__u32 thread)
{
	return climber_is_held(&threads[thread], threads[thread].allocation.id);
}

void threads_wake(__u32 thread)
{
	wait_end(&threads[thread]);
}

/* It waits in its line no longer, where it is counted, but to be let in for a moment. */
void threads_late(__u32 thread)
{
	late_begins(&threads[thread]);
}

/* It wakes up, having run. */
void threads_woken(__u32 thread)
{
	wait_woken(machine_get(), &threads[thread]);
}

/* It works for the container, and comes to wait where nobody does. Whether nobody does: then it is at the front. */
bool threads_enter(__u32 thread, __u32 id)
{
	struct sched_waiting *w = &threads[thread];

	w->self = front_self((thread + 1ull) << 12); /* as where the kernel keeps it */
	w->sign = front_sign(w->self, id);
	return front_enters(machine_get(), w->sign);
}

/* It begins to run. Whether it was at the front yet: else it is counted in a line. */
bool threads_leave(__u32 thread)
{
	return front_leaves(machine_get(), threads[thread].sign);
}

/* Whose use of the CPU its work is. */
__u32 threads_charged(__u32 thread)
{
	return threads[thread].allocation.id;
}

bool threads_foreign(__u32 thread)
{
	return threads[thread].foreign;
}

__u64 threads_unqueued(void)
{
	return state.unqueued;
}

/* Whether a thread may not leave its CPU that has so many counts against that, and runs there or does not, on a kernel. */
bool threads_stuck(__u32 counts, bool runs, __u32 minor, bool with_preempt_rcu)
{
	struct task_struct p = {.migration_disabled = counts}, other = {};

	LINUX_KERNEL_VERSION = KERNEL_VERSION(6, minor, 0);
	preempt_rcu = with_preempt_rcu;
	running = runs ? &p : &other;
	return is_stuck(&p);
}
