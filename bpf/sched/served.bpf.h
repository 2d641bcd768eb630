/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Served: what a thread served lately, as far as the core has noted it (core/served). combined.bpf.h says what for. */
#pragma once

#include "core/clients.h"
#include "thread.bpf.h"

#define SERVED_NS 1000000000ull

static __always_inline bool served_lately(const struct sched_served *s, __u64 ran_ns, __u64 now)
{
	return now - s->at_ns < SERVED_NS && ran_ns - s->ran_ns < SERVED_WORK_NS && container_get(s->container);
}

/* The thread works for this one; the one that was served longest ago makes room. */
__noinline int served_add(struct sched_waiting *w __arg_nonnull, __u64 container, __u64 ran_ns, __u64 now)
{
	struct fief_ref to = {container, container >> 32};
	__u32 at = w->served_count, oldest = 0, i;

	bpf_for (i, 0, FIEF_SERVED) {
		struct sched_served *s = &w->served[i & (FIEF_SERVED - 1)];

		if (i >= w->served_count)
			break;
		if (same_ref(s->container, to)) {
			at = i;
			break;
		}
		if (is_before(s->at_ns, w->served[oldest & (FIEF_SERVED - 1)].at_ns))
			oldest = i;
	}
	if (at >= FIEF_SERVED)
		at = oldest;
	else if (at == w->served_count)
		w->served_count = at + 1;
	at &= FIEF_SERVED - 1;
	w->served[at].container = to;
	w->served[at].at_ns = now;
	w->served[at].ran_ns = ran_ns;
	return 0;
}

/* Removes the containers that were not served lately; the last one of the list takes the place of each. */
__noinline int served_prune(struct sched_waiting *w __arg_nonnull, __u64 ran_ns, __u64 now)
{
	__u32 i;

	bpf_for (i, 0, FIEF_SERVED) {
		__u32 at = FIEF_SERVED - 1 - i;
		struct sched_served *s = &w->served[at & (FIEF_SERVED - 1)];

		if (at >= w->served_count || served_lately(s, ran_ns, now))
			continue;
		w->served_count--;
		*s = w->served[w->served_count & (FIEF_SERVED - 1)];
	}
	return 0;
}

/* The listener's queue; 0: it has none. */
static __noinline int listener_queue(struct sched_waiting *w __arg_nonnull, __u32 listener)
{
	struct fief_control *control = control_get();
	struct fief_guard *guard;
	__u32 key;

	if (!control || !listener)
		return 0;
	if (w->queue && w->listener == listener && w->listener_epoch == control->epoch)
		return w->queue;
	key = (control->slot & 1) * FIEF_MAX_LISTENERS + listener - 1;
	guard = bpf_map_lookup_elem(&guards, &key);
	return guard ? guard->queue : 0;
}

/*
 * The thread serves the listener, and so its queue. Without one nothing is to be asked of it that was not before, and it goes on to serve
 * another one that has one, if it does.
 */
static __noinline int listener_serves(struct sched_waiting *w __arg_nonnull, __u32 listener, __u64 ran_ns)
{
	struct fief_control *control = control_get();
	__u32 epoch, queue;

	if (!control)
		return 0;
	epoch = *(volatile __u32 *)&control->epoch; /* before: a policy that comes meanwhile has it looked up again */
	queue = listener_queue(w, listener);
	if (!queue && listener_lately(w, ran_ns))
		return 0;
	if (queue || w->queue)
		w->asked = 0;
	w->received_ran_ns = ran_ns;
	w->listener = listener;
	w->listener_epoch = epoch;
	w->queue = queue;
	return 0;
}

/* A client of the listener was answered: that counts where somebody can wait, of the one first that the thread serves. */
static __always_inline void answered_note(struct sched_waiting *w, __u32 listener)
{
	if (listener && (!w->answered || listener == w->listener) && listener_queue(w, listener))
		w->answered = listener;
}

/*
 * The running thread has received from clients of one listener, or of two. It serves the one that has a queue; if both have, the one that it
 * received from last.
 */
static __always_inline void received_take(struct sched_waiting *w, struct fief_cpu *cs, __u64 ran_ns)
{
	__u32 word = cs->received, one = client_first(word), other = client_other(word);

	if (!one || word & FIEF_ANSWERED)
		return;
	cs->received = 0;
	if (w->answered == one)
		w->answered = 0;
	if (word & FIEF_ANSWERED_OTHER)
		answered_note(w, other);
	else if (other && !listener_queue(w, one) && listener_queue(w, other))
		one = other;
	listener_serves(w, one, ran_ns);
}

/* It has received from none, and answered. */
static __always_inline void answered_take(struct sched_waiting *w, struct fief_cpu *cs)
{
	__u32 word = cs->received;

	if (!word)
		return;
	cs->received = 0;
	answered_note(w, client_first(word));
	answered_note(w, client_other(word));
}

/*
 * The thread sleeps. If it has answered a client it is a server still, however long it worked for that, until it has received from the next
 * client, which wakes it up. An answer does not count while the thread works, and not for long once it sleeps: else a thread that sends
 * all the time would be lent turns for all of that.
 */
static __always_inline void answered_sleeps(struct sched_waiting *w, __u64 ran_ns)
{
	__u64 as_of = ran_ns - (SERVED_WORK_NS - ANSWERED_WORK_NS);
	__u32 listener = w->answered;

	w->answered = 0;
	if (!listener_lately(w, ran_ns) || (w->listener == listener && is_before(w->received_ran_ns, as_of)))
		listener_serves(w, listener, as_of);
}

/* What the running thread worked for since the last look. */
__noinline int served_take(struct sched_waiting *w, __s32 pid, __u64 ran_ns)
{
	struct fief_cpu *cs = this_cpu();
	__u32 count, i;
	__u64 now;

	/* with a switch that was not seen the record is another thread's */
	if (!w || !cs || !cs->has_task || cs->running != pid)
		return 0;
	if (cs->served_reset) {
		cs->served_reset = 0;
		w->served_count = 0;
		w->asked = 0;
	}
	received_take(w, cs, ran_ns);
	count = cs->served_count;
	if (!count && w->served_count <= 1)
		return 0;
	now = cs->last_ns;
	if (count == 1 && w->served_count == 1 && same_ref(w->served[0].container, cs->served[0])) {
		w->served[0].at_ns = now;
		w->served[0].ran_ns = ran_ns;
		worked_note(w->served[0].container.id, now);
		cs->served_count = 0;
		return 0;
	}
	w->asked = 0;
	bpf_for (i, 0, FIEF_SERVED) {
		struct fief_ref to = cs->served[i & (FIEF_SERVED - 1)];

		if (i >= count)
			break;
		served_add(w, (__u64)to.generation << 32 | to.id, ran_ns, now);
		worked_note(to.id, now);
	}
	cs->served_count = 0;
	if (w->served_count > 1)
		served_prune(w, ran_ns, now);
	return 0;
}

/* The thread leaves its CPU; the core's record there is still its own. What it wrote into its ring is taken before. */
static __always_inline void served_ends(struct sched_waiting *w, struct task_struct *p)
{
	struct fief_cpu *cs = this_cpu();

	if (!cs || !cs->has_task || cs->running != p->pid)
		return;
	ring_look(cs, 0);
	served_take(w, p->pid, p->se.sum_exec_runtime);
	answered_take(w, cs);
}
