/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Floor: no thread waits for ever.
 *
 * Problem: the kernel removes a scheduler under which a thread waits for 30 s. A priority of 0, a used up limit, a policy as fifo, or a
 * thread that may run on one busy CPU only keeps threads waiting for as long as others work; and a client could bring that about by
 * many threads in one limited container.
 * How: a thread that has waited FLOOR_NS, whatever the kernel changed of it meanwhile, goes to a queue of its own. Before the tree is
 * asked, a thread of that is let in, for MOMENT_NS: then a timer tells its CPU to choose again. So 10,000 waiting threads cost
 * half a second in FLOOR_NS. Of many each CPU lets one in at a time, in steps in which all have had their moment after DRAIN_NS: those of a crowd
 * are late at the same time, and would take the CPUs from all others together. Who has waited longest is let in first: a change of a thread takes it
 * out of the queue and brings it back, and a user may change its own as often as it likes.
 * Told to choose again as soon as it runs, a thread that was preempted in the kernel would get nowhere. The tree still counts it as one that
 * waits, and that it is elsewhere (fits.bpf.h), until it is changed.
 *
 * Nor does one wait in a critical section of RCU: the kernel removes a scheduler under which one lasts for 21 s (panic_on_rcu_stall). A
 * thread that is to give up its CPU in one goes on, and is looked at after each moment, SECTION_LOOKS times: one that does nothing but
 * enter sections would keep the CPU from better ones, and from its limit. So it may wait in a section yet, as long as anybody waits. One that
 * is let in for having waited goes on until it has left the section that it waited in: the kernel notes of a thread that comes to the scheduler
 * in one (rcu_note_context_switch), and takes that back when it leaves it.
 * Limits: at most FLOOR_ROW moments in a row on a CPU, then the tree is asked once. A section may last for SECTION_MOMENTS: one walk over a
 * chain of long links takes a millisecond or two, so that much a thread can have beyond its limit each FLOOR_NS.
 */
#pragma once

#include "thread.bpf.h"

#define FLOOR_NS	6000000000ull
#define MOMENT_NS	50000
#define SECTION_MOMENTS 200
#define SECTION_LOOKS	40
#define FLOOR_ROW	64
#define FLOOR_BEATS	25	       /* periods from one look at all queues to the next */
#define DRAIN_NS	16000000000ull /* in which one CPU lets all of them in, as far as moments are that short */
#define STEP_MOST_NS	20000000ull    /* and so often at least it lets in one */
#define PROMPT_AT	0 /* the place of one that goes before all others; theirs is when they began to wait */

/*
 * Moves a thread of the queue that is walked to those that are let in for a moment. `prompt`: before all others of them, as soon as a CPU
 * chooses.
 */
static __always_inline bool late_goes(struct bpf_iter_scx_dsq *walk, struct task_struct *p, struct sched_waiting *w,
				      bool prompt)
{
	struct sched_machine *m = machine_get();

	if (!w)
		return false;
	late_begins(w);
	scx_bpf_dsq_move_set_vtime(walk, prompt ? PROMPT_AT : w->since_ns);
	if (!scx_bpf_dsq_move_vtime(walk, p, DSQ(QUEUE_LATE), 0)) {
		late_ends(w);
		return false;
	}
	if (prompt)
		__sync_fetch_and_add(&m->prompt, 1);
	m->late = 1;
	return true;
}

static __always_inline bool waits_too_long(const struct sched_waiting *w, __u64 now)
{
	return w && w->since_ns && (__s64)(now - w->since_ns) > (__s64)FLOOR_NS;
}

/* Whether one that waits does so in a critical section. */
static __always_inline bool is_in_section(const struct task_struct *p)
{
	return bpf_core_field_exists(p->rcu_read_lock_nesting) && p->rcu_read_lock_nesting > 0;
}

/* Those of a queue that are late go. Static: only a caller's context makes the iterator legal (RCU). */
static __noinline int late_leave(__u32 number, __u64 now)
{
	struct task_struct *p;

	bpf_for_each (scx_dsq, p, DSQ(number), 0) {
		struct sched_waiting *w = waiting_of(p);

		if (waits_too_long(w, now))
			late_goes(&___it, p, w, is_in_section(p));
	}
	return 0;
}

/*
 * How fast those that are late are let in, so that they do not take the CPUs from all others at once: by the most of them since nobody was
 * late. Whether somebody is.
 */
static __always_inline bool late_paces(struct sched_machine *m)
{
	s32 late = scx_bpf_dsq_nr_queued(DSQ(QUEUE_LATE));
	__u64 step_ns = late > 0 ? DRAIN_NS / (__u32)late : STEP_MOST_NS;

	if (late <= 0 || step_ns < m->late_step_ns)
		m->late_step_ns = step_ns < STEP_MOST_NS ? step_ns : STEP_MOST_NS;
	return late > 0;
}

/* Of all queues. Whether somebody is late. */
static __always_inline bool floor_look(struct sched_machine *m, __u64 now)
{
	__u32 number;

	bpf_for (number, 0, m->top) {
		struct sched_queue *q = queue_at(number);

		if (!q)
			break;
		if (q->taken || number == QUEUE_ROOT)
			late_leave(number, now);
	}
	late_leave(QUEUE_FRONT, now);
	return late_paces(m);
}

/* Whether the thread is in the section yet in which it last came to the scheduler. */
static __always_inline bool section_lasts(__u64 thread)
{
	struct task_struct *p = bpf_core_cast((void *)thread, struct task_struct);

	return bpf_core_field_exists(p->rcu_read_unlock_special) && p->rcu_read_unlock_special.b.blocked;
}

/* The moment of the thread that was let in is over. One that came instead meanwhile is not disturbed. */
static int moment_ends(void *map, int *cpu, struct sched_moment *moment)
{
	struct sched_place *there = place_at(*cpu);

	if (there->thread != moment->thread)
		return 0;
	if (moment->more && section_lasts(moment->thread)) {
		moment->more--;
		there->row++;
		if (!bpf_timer_start(&moment->timer, MOMENT_NS, BPF_F_TIMER_CPU_PIN))
			return 0;
	}
	scx_bpf_kick_cpu(*cpu, SCX_KICK_PREEMPT);
	return 0;
}

static __always_inline s32 moments_begin(void)
{
	struct sched_moment *moment;
	__u32 cpu;
	s32 err;

	bpf_for (cpu, 0, cpu_count) {
		moment = bpf_map_lookup_elem(&sched_moments, &cpu);
		if (!moment)
			break;
		err = bpf_timer_init(&moment->timer, &sched_moments, CLOCK_MONOTONIC);
		if (err)
			return err;
		bpf_timer_set_callback(&moment->timer, moment_ends);
	}
	return 0;
}

/* Of the thread that begins to run on this CPU, and so many more to leave the section that it waited in. */
static __always_inline void moment_begins(struct task_struct *p, __u32 more)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct sched_moment *moment = bpf_map_lookup_elem(&sched_moments, &cpu);

	if (!moment)
		return;
	moment->thread = (__u64)p;
	moment->more = more;
	if (bpf_timer_start(&moment->timer, MOMENT_NS, BPF_F_TIMER_CPU_PIN))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* A program of its own holds one. */
#define SECTIONS_OWN 1

/* Of the thread that runs here, which is to give up the CPU: whether it goes on for a moment. */
static __always_inline bool section_goes_on(struct task_struct *p, struct sched_place *here)
{
	if (!bpf_core_field_exists(p->rcu_read_lock_nesting) || p->rcu_read_lock_nesting <= SECTIONS_OWN ||
	    here->section >= SECTION_LOOKS) {
		here->section = 0;
		return false;
	}
	here->section++;
	here->row++;
	moment_begins(p, 0);
	return true;
}

/* A thread that comes to wait is to be let in for a moment, and waits anew then. */
static __always_inline void late_inserts(struct task_struct *p, __u64 place, __u64 flags)
{
	scx_bpf_dsq_insert_vtime(p, DSQ(QUEUE_LATE), SLICE_NS, place, flags);
}

/* One that cannot be counted among those of a line. */
static __always_inline void late_waits(struct task_struct *p, __u64 flags)
{
	struct sched_machine *m = machine_get();

	late_inserts(p, PROMPT_AT, flags);
	__sync_fetch_and_add(&m->prompt, 1);
	m->late = 1;
	scx_bpf_kick_cpu(scx_bpf_task_cpu(p), 0);
}

/* A killed thread has a whole slice to end in: it may have much to give back before it does. */
static __always_inline bool is_dying(struct task_struct *p)
{
	return p->flags & PF_EXITING || p->signal->flags & SIGNAL_GROUP_EXIT;
}

/* Lets in the first one that may run here. */
static __always_inline bool late_takes(struct sched_machine *m, struct sched_place *here)
{
	if (!scx_bpf_dsq_move_to_local(DSQ(QUEUE_LATE)))
		return false;
	here->brief = 1;
	here->row++;
	if (*(volatile __s32 *)&m->prompt > 0)
		__sync_fetch_and_add(&m->prompt, -1);
	state_count(floored);
	return true;
}

/*
 * Lets a thread in that waited too long, if one's turn has come. To find the empty queue by its number costs as much as a step down the
 * tree: `late` spares it.
 */
static __always_inline bool floor_let_in(struct sched_machine *m, struct sched_place *here, __u64 now)
{
	bool prompt = *(volatile __s32 *)&m->prompt > 0;

	if (!*(volatile __u32 *)&m->late) {
		here->row = 0;
		return false;
	}
	if (here->row >= FLOOR_ROW || (!prompt && is_before(now, here->late_ns))) {
		here->row = 0;
		return false;
	}
	/* what a slice was longer than a step is made up for; who need not wait for one puts nobody off */
	if (!prompt)
		here->late_ns = (is_before(here->late_ns + STEP_MOST_NS, now) ? now : here->late_ns) + m->late_step_ns;
	if (late_takes(m, here))
		return true;
	here->row = 0;
	/* in this order: one that comes after the look says so itself */
	__sync_lock_test_and_set(&m->late, 0);
	if (scx_bpf_dsq_nr_queued(DSQ(QUEUE_LATE)) > 0)
		m->late = 1;
	else
		m->prompt = 0;
	return false;
}
