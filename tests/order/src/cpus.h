/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two CPUs that give themselves away and on which threads wake up, one call on each at once, with all of the scheduler; the kernel's part is
 * scx.h. The second one has other work: whoever comes to wait is the first one's.
 *
 * cpus_race() names the points of each where the other one goes on.
 */
#pragma once

struct seq_file;
#define bpf_seq_write(to, data, size) ((void)(to), (void)(data))

static long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags)
{
	(void)map, (void)key, (void)value, (void)flags;
	return 0;
}

#include "dispatch.bpf.h"
#include "enqueue.bpf.h"
#include "run.bpf.h"
#include "machine.bpf.h"

#define KEPT	     32 /* containers that these tests have; */
#define KEPT_THREADS 8	/* and threads */
#define OTHER_CPU    1
#define NOBODY	     ~0u

static struct signal_struct no_signal;

void cpus_begin(void)
{
	memset(&control, 0, sizeof(control));
	own_clock = 1000000000;
	machine.now_ns = own_clock;
	machine.top = 1;
	machine.cpus = CPUS;
	machine.places[OTHER_CPU].rank = ~0u;
}

/* A thread that works for the container, and sleeps. */
void cpus_thread(__u32 thread, __u32 id)
{
	struct task_struct *p = &tasks[thread];

	p->pid = p->tgid = thread + 1;
	p->cpus_ptr = &all_cpus;
	p->nr_cpus_allowed = CPUS;
	p->scx.weight = 100;
	p->signal = &no_signal;
	stored[thread].made = RECORD_MADE;
	stored[thread].home = ref_of(id);
	stored[thread].binding = ref_of(id);
	/* as task_begins() */
	threads[thread].allocation.id = FIEF_NO_ID;
	threads[thread].self = front_self((__u64)p);
}

/* It may run on that CPU alone, and is there, or is to be moved there. */
void cpus_pin(__u32 thread, __u32 cpu, bool is_there)
{
	static const struct cpumask alone[CPUS] = {{1 << 0}, {1 << OTHER_CPU}};
	struct task_struct *p = &tasks[thread];

	p->cpus_ptr = &alone[cpu];
	p->nr_cpus_allowed = 1;
	if (is_there)
		p->thread_info.cpu = cpu;
}

/* ---- what a CPU does ---- */

static void thread_sets_out(struct task_struct *p)
{
	p->__state = 0;
	p->scx.flags = SCX_TASK_QUEUED;
	if (p->nr_cpus_allowed > 1)
		p->thread_info.cpu = bpf_get_smp_processor_id();
	enqueue(p, SCX_ENQ_WAKEUP);
}

static void thread_wakes(struct task_struct *p)
{
	thread_sets_out(p);
	scx_returns(bpf_get_smp_processor_id());
}

/* The thread that the CPU was given, as running_begins() and then the switch do it. */
static void thread_begins(struct cpu *own, __u32 cpu)
{
	struct sched_machine *m = machine_get();
	struct task_struct *p = own->local;
	struct fief_task *v = record_of(p);

	own->local = NULL;
	own->is_idle = false;
	own->does = RUNS;
	own->runs = p;
	p->thread_info.cpu = cpu;
	if (!front_runs(m, p))
		run_begins(m, p);
	if (v->request) {
		v->binding = (struct fief_ref){REQUEST_ID(v->request), v->request >> 32};
		v->request = 0;
	}
	records[cpu].has_task = 1;
	records[cpu].running = p->pid;
	records[cpu].thread = (__u64)p;
	records[cpu].task = *v;
	scx_returns(cpu);
}

/* The CPU chooses until it has a thread, or is idle and was not told to choose again. */
static void cpu_chooses(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *own = &cpus[cpu];

	for (;;) {
		own->does = CHOOSES;
		own->kicked = false;
		own->choices++;
		calls_point();
		dispatch(cpu, NULL);
		if (own->local)
			break;
		scx_returns(cpu);
		own->does = IDLE;
		own->is_idle = true;
		if (!own->kicked)
			return;
		calls_spin(); /* a choice takes as long as the other one needs for a step */
	}
	thread_begins(own, cpu);
}

/* ---- one after the other ---- */

static __u32 running_thread(void)
{
	const struct cpu *own = &cpus[own_cpu];

	return own->does == RUNS ? (__u32)task_number(own->runs) : NOBODY;
}

static void kicks_take(void)
{
	while (cpus[own_cpu].does == IDLE && cpus[own_cpu].kicked)
		cpu_chooses();
}

/* It wakes up, on the other CPU. */
void cpus_wake(__u32 thread)
{
	own_cpu = OTHER_CPU;
	thread_wakes(&tasks[thread]);
	own_cpu = 0;
	kicks_take();
}

/* The same, as far as to where it is to be inserted; and the rest. */
void cpus_set_out(__u32 thread)
{
	own_cpu = OTHER_CPU;
	thread_sets_out(&tasks[thread]);
	own_cpu = 0;
}

void cpus_arrive(void)
{
	own_cpu = OTHER_CPU;
	scx_returns(own_cpu);
	own_cpu = 0;
	kicks_take();
}

/* So often the first CPU has chosen. */
__u32 cpus_choices(void)
{
	return cpus[0].choices;
}

/* The first CPU, which has no thread, chooses: that thread, or NOBODY. */
__u32 cpus_choose(void)
{
	cpu_chooses();
	return running_thread();
}

/* The thread of the first CPU. */
__u32 cpus_runs(void)
{
	return running_thread();
}

/* It has run for so long, and sleeps. */
void cpus_sleep(__u64 ran_ns)
{
	struct cpu *own = &cpus[own_cpu];
	struct task_struct *p = own->runs;

	own_clock += ran_ns;
	p->se.sum_exec_runtime += ran_ns;
	order_charge(records[own_cpu].task.binding.id, ran_ns);
	p->__state = 1;
	p->scx.flags = 0;
	run_ends(p, false);
	/* as the switch away from it */
	stored[task_number(p)] = records[own_cpu].task;
	records[own_cpu].has_task = 0;
	own->runs = NULL;
	own->does = BUSY;
	own->preempted = false;
}

/* The running thread binds itself. */
void cpus_bind(__u32 id)
{
	records[own_cpu].task.binding = ref_of(id);
}

/* One that sleeps is left a request, as request_leave() does it. */
void cpus_request(__u32 thread, __u32 id)
{
	stored[thread].request = (__u64)table[id].generation << 32 | id;
	control.requests++;
}

static void beat_comes(void)
{
	static struct sched_beat beat;

	period_begins(NULL, NULL, &beat);
	scx_returns(own_cpu);
	kicks_take();
}

/* A period has passed. */
void cpus_beat(void)
{
	own_clock += PERIOD_NS;
	beat_comes();
}

void cpus_give(__u32 id, __u32 limit_ppm, __u32 priority, __u32 policy)
{
	table[id].attributes[0].limit_ppm = limit_ppm;
	table[id].attributes[0].priority = priority;
	table[id].attributes[0].policy = policy;
}

/* Whether a thread waits alone, in no line. */
bool cpus_front(void)
{
	return is_sign(front_seen(machine_get()));
}

/* In whose line it waits; NOBODY: in none. */
__u32 cpus_line(__u32 thread)
{
	return threads[thread].container - 1;
}

/* Whether the thread of the first CPU is to give it up. */
bool cpus_preempted(void)
{
	return cpus[0].preempted;
}

/* What has been charged to the container and its place in the tree does not know. */
__u64 cpus_unsettled_ns(__u32 id)
{
	return table[id].charged_ns;
}

/* Whether nothing is left of threads that waited: no count, no list, no queue, no lock; and as many CPUs are idle as say so. */
bool cpus_are_clean(void)
{
	__u32 idle = 0, left = 0;

	for (__u32 cpu = 0; cpu < CPUS; cpu++)
		idle += machine.places[cpu].idle;
	for (__u32 id = 0; id < KEPT; id++)
		left += nodes[id].queued || nodes[id].linked || nodes[id].first || nodes[id].queue || nodes[id].late;
	for (__u32 thread = 0; thread < KEPT_THREADS; thread++)
		left += places[thread].waits || threads[thread].container;
	return !left && machine.front == FRONT_NOBODY && !machine.lined && !machine.alone && !machine.lock &&
	       machine.free == QUEUES - 1 && machine.idle == idle;
}

/* ---- both at once ---- */

static struct task_struct *wakes_on[CPUS]; /* NULL: the CPU chooses */

static void act(int cpu)
{
	if (wakes_on[cpu])
		thread_wakes(wakes_on[cpu]);
	else
		cpu_chooses();
}

/*
 * On the first CPU a thread wakes up, or, for NOBODY, it chooses; on the second one another thread wakes up. The first one goes on to a point,
 * then the second one, and so on: `stops` are counted from where each goes on. Then both go on to their ends. How many stops there were.
 */
__u32 cpus_race(__u32 first, __u32 second, const __u32 *stops, __u32 count)
{
	__u32 met = 0;

	wakes_on[0] = first == NOBODY ? NULL : &tasks[first];
	wakes_on[1] = &tasks[second];
	for (; met < count; met++) {
		int cpu = met & 1;

		if (met < CPUS ? !calls_begin(cpu, act, stops[met])
			       : !calls_has_stopped(cpu) || !calls_go_to(cpu, stops[met]))
			break;
	}
	if (!met)
		calls_begin(1, act, ~0u);
	for (int cpu = CPUS - 1; cpu >= 0; cpu--)
		if (calls_has_stopped(cpu))
			calls_go_to(cpu, ~0u);
	kicks_take();
	return met;
}

/* ---- what was before ---- */

static char kept[1 << 20];

static void keeps(char **to, void *at, size_t size, bool back)
{
	memcpy(back ? at : *to, back ? *to : at, size);
	*to += size;
}

/* Keeps all that there is, or has it back. */
void cpus_keep(bool back)
{
	char *to = kept;

	_Static_assert(sizeof(machine) + KEPT * (sizeof(*nodes) + sizeof(*table)) + sizeof(lines) + sizeof(numbers) +
			       KEPT_THREADS * (sizeof(*tasks) + sizeof(*threads) + sizeof(*stored) + sizeof(*places)) +
			       sizeof(records) + sizeof(cpus) + sizeof(control) + sizeof(own_clock) <
			   sizeof(kept),
		       "there is room");
	keeps(&to, &machine, sizeof(machine), back);
	keeps(&to, nodes, KEPT * sizeof(*nodes), back);
	keeps(&to, table, KEPT * sizeof(*table), back);
	keeps(&to, lines, sizeof(lines), back);
	keeps(&to, numbers, sizeof(numbers), back);
	keeps(&to, tasks, KEPT_THREADS * sizeof(*tasks), back);
	keeps(&to, threads, KEPT_THREADS * sizeof(*threads), back);
	keeps(&to, stored, KEPT_THREADS * sizeof(*stored), back);
	keeps(&to, places, KEPT_THREADS * sizeof(*places), back);
	keeps(&to, records, sizeof(records), back);
	keeps(&to, cpus, sizeof(cpus), back);
	keeps(&to, &control, sizeof(control), back);
	keeps(&to, &own_clock, sizeof(own_clock), back);
}
