/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What happens to threads and CPUs beside what they do themselves (cpus.h): a thread that waits is changed, a CPU is stopped while it has the
 * tree's lock, and lines have threads for other CPUs alone.
 */
#pragma once

#define LOCKED_NS 100000 /* a try for the lock takes so long, while another CPU has it and is stopped */

void order_stopped(__u64 ns);

/* A look-up is a point too where the other CPU may come in between. */
static bool lookups_stop;

/* ---- a thread that waits ---- */

/* Its nice value, its CPUs or its cgroup is another one: the kernel takes it out of its queue, and has it come to wait again. */
void mishaps_change(__u32 thread)
{
	places[thread].waits = false;
	own_cpu = OTHER_CPU;
	enqueue(&tasks[thread], 0);
	scx_returns(own_cpu);
	own_cpu = 0;
	kicks_take();
}

/* Whether it waits among those that are let in for a moment. */
bool mishaps_late(__u32 thread)
{
	return places[thread].waits && places[thread].queue == DSQ(QUEUE_LATE);
}

/* From now on the first CPU has a thread of nobody's that never sleeps, or has none. */
void mishaps_hog(bool hogs)
{
	cpus[0].does = hogs ? RUNS : BUSY;
	cpus[0].runs = hogs ? &tasks[THREADS - 1] : NULL;
}

/* It serves the listener of the queue, a client of which it has just received from. */
void mishaps_serves(__u32 thread)
{
	threads[thread].queue = 1;
	threads[thread].listener = 1;
	threads[thread].received_ran_ns = tasks[thread].se.sum_exec_runtime;
	threads[thread].asked = 0;
}

/* The thread of the first CPU works for a client of that listener, as the core notes it. */
void mishaps_client(__u32 listener, bool received)
{
	records[0].received = client_noted(records[0].received, listener, received);
}

/* It has run for so long, and a tick comes. Whether it is to give up the CPU. */
bool mishaps_tick(__u64 ran_ns)
{
	own_clock += ran_ns;
	cpus[0].runs->se.sum_exec_runtime += ran_ns;
	order_charge(records[0].task.binding.id, ran_ns);
	cpus[0].runs->scx.slice = 1;
	run_ticks(cpus[0].runs);
	return !cpus[0].runs->scx.slice;
}

/* ---- the beat ---- */

/* So long until the next one is due. */
__u64 mishaps_until_beat(void)
{
	return timer_due_ns > own_clock ? timer_due_ns - own_clock : 0;
}

/* It comes so much later. */
void mishaps_beat(__u64 late_ns)
{
	own_clock += mishaps_until_beat() + late_ns;
	beat_comes();
}

/* It is due, and each step of a loop that looks at all CPUs takes so long. */
void mishaps_slow_beat(__u64 step_ns)
{
	own_clock += mishaps_until_beat();
	try_ns = step_ns;
	beat_comes();
	try_ns = 0;
}

/* ---- lines ---- */

/* A thread waits in the container's line that may run on the second CPU alone, as the first one has seen. */
void mishaps_line(__u32 id)
{
	waits_more(id);
	nodes[id].misfits = chooser_of(0);
}

/* So many threads are counted in it. */
__u32 mishaps_counted(__u32 id)
{
	return nodes[id].queued;
}

/* ---- the thread of the first CPU ---- */

static void slice_ends(int cpu)
{
	struct task_struct *p = cpus[cpu].runs;

	p->scx.slice = 0;
	dispatch(cpu, p);
	scx_returns(cpu);
}

/* It has had its slice. Whether it goes on. */
bool mishaps_slice(void)
{
	struct task_struct *p = cpus[0].runs;

	slice_ends(0);
	return p->scx.slice && !cpus[0].local;
}

/* It is taken off its CPU, and waits. The CPU has not chosen yet. */
void mishaps_preempt(void)
{
	struct task_struct *p = cpus[0].runs;

	run_ends(p, true);
	stored[task_number(p)] = records[0].task;
	records[0].has_task = 0;
	cpus[0].runs = NULL;
	cpus[0].does = BUSY;
	enqueue(p, 0);
	scx_returns(0);
}

/* Whose turn it has that works for another one: id + 1; 0: nobody's. */
__u32 mishaps_turn(void)
{
	return machine.places[0].turn;
}

/* ---- a CPU that is stopped with the lock ---- */

/* The first CPU is given a thread that waits, which begins to run while the lock is not to be had. */
void mishaps_begin(__u32 thread)
{
	places[thread].waits = false;
	cpus[0].local = &tasks[thread];
	order_stopped(LOCKED_NS);
	thread_begins(&cpus[0], 0);
	order_stopped(0);
}

/* For how long its last wait is ended, which it had at the front. */
__u64 mishaps_wait_ends(__u32 thread)
{
	__u64 began = own_clock;

	order_stopped(LOCKED_NS);
	wait_end(&threads[thread]);
	order_stopped(0);
	return own_clock - began;
}

/* The thread of the first CPU has had its slice, and goes on; it cannot be counted out, since by then the lock is not to be had. */
void mishaps_owe(void)
{
	struct sched_place *own = &machine.places[0];

	for (__u32 stop = 0; !own->owed && calls_begin(0, slice_ends, stop); stop++) {
		bool is_last = !machine.lock && own->stays;

		if (is_last)
			order_stopped(LOCKED_NS);
		calls_go_to(0, ~0u);
		order_stopped(0);
	}
}

/* The second CPU chooses. */
void mishaps_other_chooses(void)
{
	own_cpu = OTHER_CPU;
	dispatch(OTHER_CPU, NULL);
	scx_returns(OTHER_CPU);
	own_cpu = 0;
}

static struct task_struct *opens_for;

static void opens(int cpu)
{
	if (opens_for)
		thread_wakes(opens_for);
	else
		cpu_chooses();
}

/*
 * A thread that waited at the front is the second CPU's by now. The first one chooses, or another thread wakes up on it (`other`; NOBODY: it
 * chooses), and it is stopped at a point of that, with the lock or without. Meanwhile the first thread begins, sleeps, and wakes up and runs once
 * more, as far as `steps` say. Then the first CPU goes on. False: it has no such point.
 */
bool mishaps_open(__u32 thread, __u32 other, __u32 stop, __u32 steps)
{
	struct task_struct *p = &tasks[thread];
	struct cpu *second = &cpus[OTHER_CPU];
	bool stopped;

	opens_for = other == NOBODY ? NULL : &tasks[other];
	places[thread].waits = false;
	second->local = p;
	lookups_stop = true;
	stopped = calls_begin(0, opens, stop);
	lookups_stop = false;
	own_cpu = OTHER_CPU;
	try_ns = LOCKED_NS;
	thread_begins(second, OTHER_CPU);
	if (steps > 0)
		cpus_sleep(1000);
	if (steps > 1)
		thread_wakes(p);
	if (steps > 2 && places[thread].waits) {
		places[thread].waits = false;
		second->local = p;
		thread_begins(second, OTHER_CPU);
	}
	try_ns = 0;
	own_cpu = 0;
	if (stopped)
		calls_go_to(0, ~0u);
	own_cpu = OTHER_CPU;
	if (second->does == RUNS)
		cpus_sleep(1000);
	own_cpu = 0;
	kicks_take();
	return stopped;
}

/* All that wait run on the first CPU, until nobody does. */
void mishaps_drain(void)
{
	do {
		if (cpus[0].does == RUNS)
			cpus_sleep(1000);
	} while (cpus_choose() != NOBODY);
}
