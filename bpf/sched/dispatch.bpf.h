/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Dispatch: which thread a CPU without one runs next.
 *
 * How: the thread at the front, where one waits alone, or one of the container that does. Else kernel threads and those that the floor
 * lets in, and then the tree's choice, under the machine's lock. A chosen queue may have no thread for this CPU: then the tree is asked again,
 * and what was in vain is marked. One CPU at a time looks so much further, since the marks of several would wipe each other out, and no search
 * would end.
 * Limits: a search takes PICKS_NS, since interrupts are off, and goes on with the next choice.
 */
#pragma once

#include "alone.bpf.h"
#include "charge_now.bpf.h"
#include "climbs.bpf.h"
#include "floor.bpf.h"
#include "idle.bpf.h"
#include "kthread.bpf.h"
#include "leaves.bpf.h"
#include "pick.bpf.h"
#include "stays.bpf.h"

#define PICKS	   256	   /* queues in a row that have no thread for this CPU; more than one only for */
#define PICKS_NS   200000  /* so long: interrupts are off */
#define RESTS_MOST 64	   /* so often in a row a search goes on */
#define TURN_TRIES 16	   /* for the turn to look further */
#define TURN_NS	   1000000 /* a CPU that has it and did not look for so long may have been stopped */

/* The thread that waits alone. It says itself that it has left the front, as it begins to run. */
static __always_inline bool front_takes(struct sched_machine *m, struct sched_place *here)
{
	if (!is_sign(front_seen(m)) || *(volatile __u32 *)&m->late | *(volatile __u32 *)&m->kernel | here->search)
		return false;
	if (!scx_bpf_dsq_move_to_local(DSQ(QUEUE_FRONT)))
		return false;
	here->row = 0;
	here->rests = 0;
	here->misses = 0;
	here->picked++;
	return true;
}

/* The thread of the one container that waits, where it is known without a choice. */
static __always_inline bool alone_takes(struct sched_machine *m, struct sched_place *here)
{
	struct sched_node *n;
	__u32 queue;
	int found;

	if (!*(volatile __u32 *)&m->alone || !machine_lock())
		return false;
	found = alone_pick();
	n = found >= 0 ? node_at(found) : NULL;
	queue = found == FIEF_ROOT ? QUEUE_ROOT + 1 : n ? n->queue : 0;
	machine_unlock(m);
	if (!queue || !scx_bpf_dsq_move_to_local(DSQ(queue - 1)))
		return false;
	here->row = 0;
	state_count(picked);
	return true;
}

/*
 * A search that has had its time without an end goes on with the next choice, at once: else the CPU would be idle although somebody waits
 * for it. What it has seen is marked with its number. Whether somebody has come since it began is asked at its end (idle_notes()): another
 * search sees that one.
 */
static __always_inline void search_rests(struct sched_machine *m, struct sched_place *here, s32 cpu, bool over)
{
	bool again = !over || idle_again(m, here);

	if (over)
		here->search = 0;
	if (again && here->rests < RESTS_MOST) {
		here->rests++;
		scx_bpf_kick_cpu(cpu, 0);
		return;
	}
	here->search = 0;
	here->rests = 0;
	if (!again)
		return;
	idle_begins(m, here);
	m->held = 1; /* the next beat has it look again */
}

/* It has found something, or somebody else has. */
static __always_inline void search_ends(struct sched_place *here)
{
	here->search = 0;
	here->rests = 0;
	here->misses = 0;
}

/*
 * Whether this CPU may look further than at the tree's first choice, and by which number it marks what it has seen. The lock is held. Global:
 * the verifier follows it once.
 */
__noinline int further_takes(s32 cpu, __u64 now)
{
	struct sched_machine *m = machine_get();
	struct sched_place *here = place_at(cpu);
	bool own = m->searcher == cpu + 1;

	if (m->searcher && !own && (__s64)(now - m->searched_ns) < TURN_NS) {
		here->refused++;
		return 0;
	}
	if (!own || !here->search) {
		here->search = ++m->searches ?: ++m->searches;
		m->searcher = cpu + 1;
	}
	m->searched_ns = now;
	m->search = here->search;
	return 1;
}

/* A search has found nothing: whether another one follows that is thorough, since it left children out. The lock is held. */
static __always_inline bool search_deepens(struct sched_machine *m, struct sched_place *here)
{
	if (!here->left || here->thorough)
		return false;
	here->thorough = 1;
	here->search = ++m->searches ?: ++m->searches;
	return true;
}

/* It looks no further. */
static __always_inline void further_ends(struct sched_machine *m, s32 cpu)
{
	if (*(volatile __u32 *)&m->searcher == cpu + 1)
		__sync_val_compare_and_swap(&m->searcher, cpu + 1, 0);
}

/* The thread that went on, or another one, is counted no longer. Where the lock is not to be had, the CPU owes it (debts_pay()). */
static __always_inline void stays_ends(struct sched_machine *m, struct sched_place *here, __u32 stays)
{
	if (!machine_lock()) {
		here->owed = stays;
		__sync_lock_test_and_set(&m->owing, 1);
		return;
	}
	line_leave(stays - 1);
	machine_unlock(m);
}

/* The lock is held. */
static __always_inline void debt_pay(struct sched_place *there)
{
	if (!there->owed)
		return;
	line_leave(there->owed - 1);
	there->owed = 0;
}

/*
 * What CPUs owe is paid by the next one that chooses and finds the lock free: a CPU that owes may be away, and what it owes keeps the
 * container's turn from all that could have it. Global: as further_takes().
 */
__noinline int debts_pay(void)
{
	struct sched_machine *m = machine_get();
	__u32 cpu;

	if (!machine_try())
		return 0;
	__sync_lock_test_and_set(&m->owing, 0); /* before: one that comes to owe meanwhile says so itself */
	bpf_for (cpu, 0, cpu_count)
		debt_pay(place_in(m, cpu));
	machine_unlock(m);
	return 0;
}

/*
 * The choices before the tree's: true once a thread has the CPU by one of them. Static: as foreign_leave(). Not inline, as the tree's choice,
 * for the stack's sake, and since front_takes() needs none of their registers.
 */
static __noinline int others_go(struct sched_machine *m, struct sched_place *here, struct task_struct *prev)
{
	__u64 now;

	if (*(volatile __u32 *)&m->owing)
		debts_pay();
	if (!may_stay(prev) && !m->serving && !m->late && !m->kernel && alone_takes(m, here)) {
		search_ends(here);
		return 1;
	}
	now = bpf_ktime_get_ns();
	charge_now(now);
	here->chose_ns = now;
	here->stays = prev_waits(m, prev);
	if (here->stays && section_goes_on(prev, here)) {
		slice_set(prev, SLICE_NS);
		return 1;
	}
	lent_look(m, now);
	if (!kthread_let_in(m, here, prev, now) && !floor_let_in(m, here, now))
		return 0;
	search_ends(here);
	return 1;
}

/* The tree's choice. */
static __noinline int choose(struct sched_machine *m, struct sched_place *here, s32 cpu, struct task_struct *prev)
{
	bool given = false, over = false;
	struct sched_waiting *w = NULL;
	__u32 stays = prev ? here->stays : 0; /* what the verifier is not to forget */
	int i, found = PICK_NONE;
	__u64 now = here->chose_ns;

	if (stays && m->free <= NUMBERS_PLENTY)
		w = waiting_of(prev);
	if (!machine_lock()) {
		if (scx_bpf_dsq_move_to_local(DSQ(QUEUE_ROOT)))
			return 0;
		if (stays)
			slice_set(prev, SLICE_NS);
		else
			scx_bpf_kick_cpu(cpu, 0); /* to choose again at once: it does not say that it found nothing */
		return 0;
	}
	debt_pay(here);
	here->went_on = here->search;
	here->refused = 0;
	if (!here->went_on) {
		here->vain = 0;
		here->left = 0;
		here->thorough = 0;
	}
	if (w) { /* it goes on by the turn of the line where it would wait */
		front_opens(m);
		stays = line_take(w, stays - 1) + 1;
		if (climber_is_held(w, stays - 1)) {
			queue_return(stays - 1); /* where nobody waits for it */
			stays = 0;
		}
	}
	if (stays)
		waits_more(stays - 1);
	front_closes(m);
	if (!here->went_on)
		idle_notes(m, here);
	machine_unlock(m);
	bpf_for (i, 0, PICKS) {
		__u32 queue = QUEUE_ROOT;
		struct sched_node *n;

		if ((i && bpf_ktime_get_ns() - now > PICKS_NS) || here->refused > TURN_TRIES || !machine_lock())
			break;
		m->search = 0;
		m->vain = here->vain;
		m->left = here->left;
		m->thorough = here->thorough;
		m->chooser = chooser_of(cpu);
		if ((i || here->went_on) && !further_takes(cpu, now)) {
			machine_unlock(m);
			continue;
		}
		front_joins(m);
		alone_joins(m);
		found = tree_pick(now);
		n = found >= 0 ? node_at(found) : NULL;
		if (n) {
			if (m->search) {
				n->own_passed = m->search;
				if (!n->first)
					n->passed = m->search; /* nothing is below it */
			}
			queue = n->queue;
		}
		fits_asks(m, here, n);
		here->left = m->left;
		if (found == PICK_NONE && search_deepens(m, here))
			found = PICK_AGAIN;
		machine_unlock(m);
		over = found == PICK_NONE;
		if (over)
			break;
		if (found == PICK_AGAIN)
			continue;
		if (found == FIEF_ROOT)
			queue = QUEUE_ROOT + 1;
		if (stays == found + 1 && place_stays(prev, cpu, found, queue)) {
			slice_set(prev, slice_of(found, waiting_of(prev)));
			allocation_keeps(prev, here, found);
			state_count(kept);
			given = true;
			break;
		}
		if (queue)
			fits_counts(here, queue - 1);
		if (queue && scx_bpf_dsq_move_to_local(DSQ(queue - 1))) {
			state_count(picked);
			given = true;
			break;
		}
		if (stays == found + 1) {
			slice_set(prev, SLICE_NS);
			allocation_keeps(prev, here, found);
			state_count(kept);
			given = true;
			break;
		}
		here->vain = 1;
		if (!queue)
			continue;
		idle_misses(here, queue - 1);
		fits_not(m, here, found, cpu);
	}
	if (given && found >= 0 && here->vain && machine_lock()) {
		tree_goes(found);
		machine_unlock(m);
	}
	if (!given)
		given = kthread_take(m, here, now) || (over && *(volatile __u32 *)&m->late && late_takes(m, here));
	if (given)
		search_ends(here);
	else
		search_rests(m, here, cpu, over);
	if (stays)
		stays_ends(m, here, stays);
	return 0;
}

static __always_inline void dispatch(s32 cpu, struct task_struct *prev)
{
	struct sched_machine *m = machine_get();
	struct sched_place *here = place_in(m, cpu);

	if (!may_stay(prev) && front_takes(m, here))
		return;
	if (!others_go(m, here, prev))
		choose(m, here, cpu, prev);
	if (!here->search)
		further_ends(m, cpu);
}
