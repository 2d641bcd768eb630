/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Dispatch: which thread a CPU without one runs next.
 *
 * How: that of the one container that waits, where it is alone. Else kernel threads and those that the floor lets in, and then the
 * tree's choice, under the machine's lock. A chosen queue may have no thread for this CPU: then the tree is asked again.
 * Limits: a search takes PICKS_NS, since interrupts are off, and goes on with the next choice.
 */
#pragma once

#include "alone.bpf.h"
#include "charge_now.bpf.h"
#include "climbs.bpf.h"
#include "floor.bpf.h"
#include "kthread.bpf.h"
#include "leaves.bpf.h"
#include "pick.bpf.h"
#include "stays.bpf.h"

#define PICKS	   256	  /* queues in a row that have no thread for this CPU; more than one only for */
#define PICKS_NS   200000 /* so long: interrupts are off */
#define RESTS_MOST 64	  /* so often in a row a search goes on */

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
 * for it. What it has seen is marked with its number; who came there since is seen by another search, from the begin.
 */
static __always_inline void search_rests(struct sched_place *here, s32 cpu, __u32 search, bool over)
{
	if ((over && !here->search) || here->rests >= RESTS_MOST) {
		here->search = 0;
		here->rests = 0;
		return;
	}
	here->search = over ? 0 : search;
	here->rests++;
	scx_bpf_kick_cpu(cpu, 0);
}

static __always_inline void dispatch(s32 cpu, struct task_struct *prev)
{
	struct sched_machine *m = machine_get();
	struct sched_place *here = place_at(cpu);
	bool given = false, over = false;
	struct sched_waiting *w = NULL;
	__u32 stays, search;
	int i, found;
	__u64 now;

	if (!m || !here)
		return;
	if (!may_stay(prev) && !m->serving && !m->late && !m->kernel && alone_takes(m, here))
		return;
	now = bpf_ktime_get_ns();
	charge_now(now);
	stays = prev_waits(prev);
	if (stays && section_goes_on(prev, here)) {
		slice_set(prev, SLICE_NS);
		return;
	}
	lent_look(m, now);
	if (kthread_let_in(m, here, prev, now) || floor_let_in(m, here))
		return;
	if (stays && m->free <= NUMBERS_PLENTY)
		w = waiting_of(prev);
	if (!machine_lock()) {
		if (!scx_bpf_dsq_move_to_local(DSQ(QUEUE_ROOT)) && stays)
			slice_set(prev, SLICE_NS);
		return;
	}
	search = here->search ? here->search : ++m->searches;
	if (w) { /* it goes on by the turn of the line where it would wait */
		stays = line_take(w, stays - 1) + 1;
		if (climber_is_held(w, stays - 1)) {
			queue_return(stays - 1); /* where nobody waits for it */
			stays = 0;
		}
	}
	if (stays)
		waits_more(stays - 1);
	machine_unlock(m);
	bpf_for (i, 0, PICKS) {
		__u32 queue = QUEUE_ROOT;
		struct sched_node *n;

		if ((i && bpf_ktime_get_ns() - now > PICKS_NS) || !machine_lock())
			break;
		m->search = search;
		alone_joins(m);
		found = tree_pick(now);
		n = found >= 0 ? node_at(found) : NULL;
		if (n) {
			n->own_passed = search;
			if (!n->first)
				n->passed = search; /* nothing is below it */
			queue = n->queue;
		}
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
	}
	if (!given)
		given = kthread_take(m, here, now);
	if (given) {
		here->search = 0;
		here->rests = 0;
	} else {
		search_rests(here, cpu, search, over);
	}
	if (stays && machine_lock()) {
		waits_less(stays - 1);
		queue_return(stays - 1);
		machine_unlock(m);
	}
}
