/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a kernel does for a scheduler: threads, queues of them, CPUs, which of these are idle, and kicks.
 *
 * A thread is inserted in its queue once enqueue() has returned, and a kick is passed on after that: scx_returns() does both. Each call of the
 * kernel is a point where the other CPU may come in between (calls.h).
 */
#pragma once

#define THREADS		  64
#define PF_EXITING	  0x00000004
#define PF_KTHREAD	  0x00200000
#define SIGNAL_GROUP_EXIT 4
#define SCX_ENQ_WAKEUP	  (1ull << 0)
#define SCX_ENQ_HEAD	  (1ull << 16)
#define SCX_ENQ_PREEMPT	  (1ull << 32)
#define SCX_ENQ_LAST	  (1ull << 41)
#define SCX_WAKE_SYNC	  (1ull << 4)
#define SCX_DSQ_LOCAL	  (1ull << 63 | 2)
#define SCX_TASK_QUEUED	  1
#define SCX_KICK_IDLE	  (1u << 0)
#define SCX_KICK_PREEMPT  (1u << 1)
#define KICKED		  (1u << 31) /* in any way */

typedef __s32 s32;
typedef __u32 u32;
typedef __u64 u64;

struct cpumask {
	__u64 cpus;
};

struct signal_struct {
	__u32 flags;
};

/* No two have one cache line, as in the kernel: where it is, is what tells one apart at the front. */
struct task_struct {
	__s32 pid, tgid;
	unsigned short migration_disabled;
	__u32 flags;
	__u32 __state;
	int rcu_read_lock_nesting;
	union {
		struct {
			__u8 blocked;
		} b;
	} rcu_read_unlock_special;
	struct {
		__u32 cpu;
	} thread_info;
	struct {
		__u64 sum_exec_runtime;
	} se;
	struct {
		__u64 dsq_vtime, slice;
		__u32 weight, flags;
	} scx;
	struct signal_struct *signal;
	const struct cpumask *cpus_ptr;
	int nr_cpus_allowed;
} __attribute__((aligned(64)));

static struct task_struct tasks[THREADS];

/* Where each waits. */
static struct place {
	bool waits;
	__u64 queue, place;
} places[THREADS];

static struct cpu {
	enum { BUSY, CHOOSES, IDLE, RUNS } does;
	bool is_idle;	/* as whoever looks for an idle one sees it */
	bool kicked;	/* it is to choose again */
	bool preempted; /* its thread is to give it up */
	__u32 choices;
	__u32 kicks[CPUS];
	struct task_struct *inserts, *local, *runs;
	__u64 queue, place;
} cpus[CPUS];

static __u64 held_until_ns;

/* Its number; -1: it is none of those that wait in queues. */
static int task_number(const struct task_struct *p)
{
	__u64 at = (__u64)p - (__u64)tasks;

	return at < sizeof(tasks) ? (int)(at / sizeof(*tasks)) : -1;
}

static __s32 scx_bpf_task_cpu(const struct task_struct *p)
{
	return p->thread_info.cpu;
}

static bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *mask)
{
	return mask->cpus >> cpu & 1;
}

static const struct cpumask all_cpus = {(1 << CPUS) - 1};

static const struct cpumask *scx_bpf_get_online_cpumask(void)
{
	return &all_cpus;
}

static void scx_bpf_put_cpumask(const struct cpumask *mask)
{
	(void)mask;
}

/* It finds none idle. */
static __s32 scx_bpf_select_cpu_dfl(struct task_struct *p, __s32 prev_cpu, __u64 flags, bool *idle)
{
	(void)p, (void)flags;
	*idle = false;
	return prev_cpu;
}

static __s32 scx_bpf_create_dsq(__u64 queue, __s32 node)
{
	(void)queue, (void)node;
	return 0;
}

static void slice_set(struct task_struct *p, __u64 slice)
{
	p->scx.slice = slice;
}

/* ---- queues ---- */

static void scx_bpf_dsq_insert_vtime(struct task_struct *p, __u64 queue, __u64 slice, __u64 place, __u64 flags)
{
	struct cpu *own = &cpus[bpf_get_smp_processor_id()];

	(void)flags;
	calls_point();
	held_until_ns = queue == DSQ(QUEUE_HELD) ? place : 0;
	if (task_number(p) < 0)
		return;
	p->scx.slice = slice;
	p->scx.dsq_vtime = place;
	own->inserts = p;
	own->queue = queue;
	own->place = place;
}

static void scx_bpf_dsq_insert(struct task_struct *p, __u64 queue, __u64 slice, __u64 flags)
{
	scx_bpf_dsq_insert_vtime(p, queue, slice, 0, flags);
}

static void queue_insert(struct cpu *own)
{
	struct task_struct *p = own->inserts;

	own->inserts = NULL;
	if (own->queue == SCX_DSQ_LOCAL)
		cpus[scx_bpf_task_cpu(p)].local = p;
	else
		places[task_number(p)] = (struct place){true, own->queue, own->place};
}

static __s32 queue_length(__u64 queue)
{
	__s32 length = 0;

	calls_point();
	for (int i = 0; i < THREADS; i++)
		length += places[i].waits && places[i].queue == queue;
	return length;
}

/* The first one of the queue that may run on this CPU is given that. */
static bool queue_takes(__u64 queue)
{
	__u32 cpu = bpf_get_smp_processor_id();
	int first = -1;

	calls_point();
	for (int i = 0; i < THREADS; i++) {
		if (!places[i].waits || places[i].queue != queue || !bpf_cpumask_test_cpu(cpu, tasks[i].cpus_ptr))
			continue;
		if (first < 0 || is_before(places[i].place, places[first].place))
			first = i;
	}
	if (first < 0)
		return false;
	places[first].waits = false;
	cpus[cpu].local = &tasks[first];
	return true;
}

/* ---- a walk over a queue ---- */

#define bpf_for_each(kind, current, number, flags)                                                                     \
	for (struct bpf_iter_##kind ___it = {.queue = number}; (current = queue_next(&___it)) != NULL;)

struct bpf_iter_scx_dsq {
	__u64 queue;
	__u64 seen; /* threads, a bit each */
	__u64 place;
};

_Static_assert(THREADS <= 64, "a bit for each");

/* Of those that are there now and were not seen. */
static struct task_struct *queue_next(struct bpf_iter_scx_dsq *walk)
{
	int first = -1;

	for (int i = 0; i < THREADS; i++) {
		if (!places[i].waits || places[i].queue != walk->queue || walk->seen >> i & 1)
			continue;
		if (first < 0 || is_before(places[i].place, places[first].place))
			first = i;
	}
	if (first < 0)
		return NULL;
	walk->seen |= 1ull << first;
	return &tasks[first];
}

static void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *walk, __u64 place)
{
	walk->place = place;
}

static bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *walk, struct task_struct *p, __u64 queue, __u64 flags)
{
	struct place *own = &places[task_number(p)];

	(void)flags;
	calls_point();
	if (!own->waits || own->queue != walk->queue)
		return false;
	*own = (struct place){true, queue, walk->place};
	p->scx.dsq_vtime = walk->place;
	return true;
}

/* ---- kicks ---- */

static __s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, __u64 flags)
{
	(void)flags;
	calls_point();
	for (__u32 cpu = 0; cpu < CPUS; cpu++) {
		if (!cpus[cpu].is_idle || !bpf_cpumask_test_cpu(cpu, allowed))
			continue;
		cpus[cpu].is_idle = false; /* nobody else finds it */
		return cpu;
	}
	return -EBUSY;
}

static void scx_bpf_kick_cpu(__s32 cpu, __u64 flags)
{
	calls_point();
	if (cpu >= 0 && cpu < CPUS)
		cpus[bpf_get_smp_processor_id()].kicks[cpu] |= KICKED | flags;
}

/* One that is busy chooses yet, and finds what has been inserted. One that chooses takes it once it has chosen in vain. */
static void kick_passes(struct cpu *to, __u32 kick)
{
	if (!kick)
		return;
	to->kicked |= to->does == IDLE || to->does == CHOOSES;
	to->preempted |= to->does == RUNS && kick & SCX_KICK_PREEMPT;
}

/* The scheduler has returned on the CPU: what it said is done. */
static void scx_returns(__u32 cpu)
{
	struct cpu *own = &cpus[cpu];

	calls_point();
	if (own->inserts)
		queue_insert(own);
	calls_point();
	for (__u32 to = 0; to < CPUS; to++) {
		kick_passes(&cpus[to], own->kicks[to]);
		own->kicks[to] = 0;
	}
}
