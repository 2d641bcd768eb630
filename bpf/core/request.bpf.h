/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Request: how a thread is bound, or given a home, by another one.
 *
 * Problem: the record of a running thread is its CPU's, and no other may write it.
 * How: the other thread leaves a request, one word in the storage of the thread's record, which takes effect at the thread's
 * next boundary: when it gets a CPU, or at the next softirq on the CPU where it runs.
 * Limits: a thread that runs alone takes a request at its next softirq (one tick).
 */
#pragma once

#include "bind.bpf.h"

/*
 * A request is one word, so that those that leave it, the thread that takes it and the thread's end each see it
 * whole; whoever swaps it out owns its thread reference.
 *
 *      63                    32 31  28 27 24 23              0
 *     +------------------------+------+-----+-----------------+
 *     |       generation       |rights|flags|       id        |   0: none
 *     +------------------------+------+-----+-----------------+   all ones: the thread has ended
 */
#define REQUEST_CLOSED	 ~0ull
#define REQUEST_ID(word) ((__u32)(word) & 0x00ffffff)
#define REQUEST_COUNTS	 (1u << 24) /* as a member; else the thread is one already */
#define REQUEST_MANAGED	 (1u << 25) /* it is the thread's home from now on, and whether it follows comes with it */
#define REQUEST_FOLLOW	 (1u << 26)

/* A request stands for its thread in the count of the container until the thread is a member itself. */
static __always_inline void request_count(__u64 word, __u64 members)
{
	struct fief_container *c = container_at(REQUEST_ID(word));

	if (c && word & REQUEST_COUNTS)
		__sync_fetch_and_add(&c->members, members);
}

/* Nobody takes it any more. */
static __always_inline void request_drop(__u64 word)
{
	request_count(word, -FIEF_MEMBER_THREAD);
	container_put(REQUEST_ID(word), FIEF_THREAD);
}

#define REQUESTS_UNKNOWN ~0ull

/* How many requests there have been. */
static __always_inline __u64 requests_told(void)
{
	struct fief_control *control = control_get();

	return control ? *(volatile __u64 *)&control->requests : 0;
}

/* From now on a CPU asks a thread's storage, whatever it remembers of the thread (record.bpf.h). */
static __always_inline void requests_tell(void)
{
	struct fief_control *control = control_get();

	if (control)
		__sync_fetch_and_add(&control->requests, 1);
}

/* Leaves a request; the caller has taken a thread reference, which is the request's from now on, or dropped. */
static __noinline __attribute__((unused)) int request_leave(struct fief_task *v, struct fief_ref to, __u32 rights,
							    __u32 flags)
{
	__u64 word = (__u64)to.generation << 32 | (rights & FIEF_RIGHTS_ALL) << 28 | flags | to.id, old, seen;
	int i;

	if (!v)
		return -ESRCH;
	if (!same_ref(v->counted, to))
		word |= REQUEST_COUNTS;
	old = v->request;
	request_count(word, FIEF_MEMBER_THREAD);
	bpf_for (i, 0, CAS_TRIES) {
		if (old == REQUEST_CLOSED)
			break;
		seen = __sync_val_compare_and_swap(&v->request, old, word);
		if (seen == old) {
			requests_tell();
			if (old)
				request_drop(old);
			return 0;
		}
		old = seen;
	}
	request_drop(word);
	return old == REQUEST_CLOSED ? -ESRCH : -EAGAIN;
}

/* Another home, which somebody holds: what the thread had entered below the old one is left. Interrupts are off. */
static __noinline int home_move(struct fief_cpu *cs, struct fief_ref to)
{
	struct fief_ref old = cs->task.home;
	struct fief_container *c = container_at(to.id);

	if (c)
		container_hold(c, FIEF_HANDLE);
	for (int i = 0; i < FIEF_NEST; i++) {
		if (i < cs->task.nested && !same_ref(cs->task.nest[i].container, old))
			container_put(cs->task.nest[i].container.id, FIEF_THREAD);
	}
	cs->task.nested = 0;
	cs->task.followed.id = FIEF_NO_ID;
	cs->task.home = to;
	return container_put(old.id, FIEF_HANDLE);
}

/* A thread's request from outside, taken at a boundary on its own CPU. The requester's reference becomes the
 * thread's. */
static __always_inline void request_take(struct fief_cpu *cs, struct fief_task *v, struct task_struct *p)
{
	__u64 word = __sync_lock_test_and_set(&v->request, 0);
	struct fief_ref to = {REQUEST_ID(word), word >> 32}, was = cs->task.binding, home = cs->task.home;

	if (!word)
		return;
	request_count(word, -FIEF_MEMBER_THREAD);
	counters_settle(cs, p);
	served_forget(cs); /* a bind from outside says what the thread is for */
	cs->task.binding = to;
	cs->task.rights = word >> 28 & FIEF_RIGHTS_ALL;
	if (word & REQUEST_MANAGED) {
		cs->task.flags &= ~FIEF_TASK_FOLLOW;
		if (!same_ref(to, home)) {
			cs->task.flags &= ~FIEF_TASK_PROGRAM;
			home_move(cs, to);
		}
	}
	if (word & REQUEST_FOLLOW)
		cs->task.flags |= FIEF_TASK_FOLLOW;
	cs->task.flags |= FIEF_TASK_EXPLICIT;
	if (same_ref(to, cs->task.home)) {
		cs->task.flags &= ~FIEF_TASK_EXPLICIT;
		container_put(to.id, FIEF_THREAD);
	}
	member_settle(&cs->task, p, false);
	if (!same_ref(was, home))
		container_put(was.id, FIEF_THREAD);
}
