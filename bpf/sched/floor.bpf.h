/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Floor: no thread waits for ever.
 *
 * Problem: the kernel removes a scheduler under which a thread waits for 30 s. A priority of 0, a used up limit, or a thread
 * that may run on one busy CPU only keeps threads waiting for as long as others work; and a client could bring that about by
 * many threads in one limited container.
 * How: a queue whose oldest thread has waited FLOOR_NS is due. Before the tree is asked, a thread of it is let in, for a moment:
 * its CPU is told to choose again as soon as the thread runs. So 10,000 waiting threads cost some tenths of a second in FLOOR_NS.
 * Limits: at most FLOOR_ROW in a row on a CPU, then the tree is asked once.
 */
#pragma once

#include "thread.bpf.h"

#define FLOOR_NS    6000000000ull
#define FLOOR_ROW   64
#define FLOOR_LOOKS 64
#define FLOOR_BEATS 25 /* periods from one look at all queues to the next */

/* Since when the oldest thread of a queue waits; 0: none does. Static: only a caller's context makes the iterator legal (RCU). */
static __noinline __u64 queue_since(__u32 number)
{
	struct task_struct *p;
	__u64 since = 0;

	bpf_for_each (scx_dsq, p, DSQ(number), 0) {
		struct sched_waiting *w = waiting_of(p);

		since = w ? w->since_ns : 1;
		break;
	}
	return since;
}

static __always_inline bool queue_is_due(__u32 number, __u64 now)
{
	__u64 since = queue_since(number);

	return since && now - since > FLOOR_NS;
}

/* Marks what is due. */
static __always_inline void floor_look(struct sched_machine *m, __u64 now)
{
	__u32 number;

	bpf_for (number, 0, m->top) {
		struct sched_queue *q = queue_at(number);

		if (!q)
			break;
		if ((!q->taken && number != QUEUE_ROOT) || q->due || !queue_is_due(number, now))
			continue;
		q->due = 1;
		__sync_fetch_and_add(&m->due, 1);
	}
}

/* Lets a thread in that waited too long. */
static __always_inline bool floor_let_in(struct sched_machine *m, struct sched_place *here, __u64 now)
{
	bool let_in = false;
	int i;

	if (!m->due || here->row >= FLOOR_ROW) {
		here->row = 0;
		return false;
	}
	bpf_for (i, 0, FLOOR_LOOKS) {
		__u32 number = m->cursor;
		struct sched_queue *q = queue_at(number);

		if (!q || number >= m->top) {
			m->cursor = 0;
			continue;
		}
		if (!q->due) {
			m->cursor = number + 1;
			continue;
		}
		if (!queue_is_due(number, now)) {
			if (__sync_lock_test_and_set(&q->due, 0))
				__sync_fetch_and_sub(&m->due, 1);
			continue;
		}
		if (scx_bpf_dsq_move_to_local(DSQ(number))) {
			let_in = true;
			break;
		}
		m->cursor = number + 1; /* its oldest may run on other CPUs only */
	}
	if (!let_in) {
		here->row = 0;
		return false;
	}
	here->brief = 1;
	here->row++;
	state_count(floored);
	return true;
}
