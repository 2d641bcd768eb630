/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Pace: how fast those are told that were refused while they waited, or whose server is gone.
 *
 * Problem: a line of thousands is too long all at once, and each refusal sends the carrier of the next. So many in a row hold up all
 * other packets of their CPU: a tenth of a second of 2,700, in which a network card's ring runs over. Requests of better classes are lost.
 * So are resets, which follow each other as closely where a server has ended (a hundred in a ms, and the ring of a veth takes 256), and
 * which nobody sends again: their clients, whose requests were acknowledged, would wait in vain.
 * How: so many in a ms follow each other at once, and after a pause a few more. The others go with packets that come or leave, one with
 * each, and with the clock. Where nothing tells a queue the time, nobody else might come, and all go at once.
 * Limits: two CPUs at the same moment may let a few more go than they should.
 */
#pragma once

#define PACE_SHIFT 20 /* ns: a ms */
#define PACE_MS	   8
#define PACE_MOST  128

/* Whether the carrier of another one may follow at once. */
static __always_inline bool pace_allows(struct fief_queue *q, __u64 now)
{
	__u64 at = now >> PACE_SHIFT, before = *(volatile __u64 *)&q->paced_at, more;
	__u32 left;

	/* another CPU may have read its clock later, and been here first */
	if ((__s64)(at - before) > 0 && __sync_val_compare_and_swap(&q->paced_at, before, at) == before) {
		more = at - before < PACE_MOST ? (at - before) * PACE_MS : PACE_MOST;
		more += *(volatile __u32 *)&q->paced;
		q->paced = more < PACE_MOST ? more : PACE_MOST;
	}
	left = *(volatile __u32 *)&q->paced;
	return left && __sync_val_compare_and_swap(&q->paced, left, left - 1) == left;
}
