/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Follow: an unmodified server's thread takes the container of the socket it works on.
 *
 * Problem: an event loop serves all classes in one thread and knows nothing of containers.
 * How: each receive and send on a labelled socket rebinds the thread. After a voluntary sleep the time is pending until the
 * first socket event tells its container. Over a UNIX connection the sender's container goes with the bytes: whoever receives
 * them, as a persistent back end does (FastCGI), follows it too.
 * Limits: only within the subtree of the thread's home, never a thread that bound itself by a call; work between the last event
 * of one connection and the first of the next is charged to the former.
 */
#pragma once

#include "labels.bpf.h"
#include "switch.bpf.h"

static __noinline int follow_switch(struct fief_cpu *cs, struct fief_ref to)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_container *c = container_get(to);
	struct fief_ref was, home;
	unsigned long flags;

	if (!c)
		return 0;
	if (!same_ref(cs->task.followed, to)) {
		if (!container_below(to, cs->task.home))
			return 0;
	}
	home = cs->task.home;
	if (!same_ref(to, home) && !kept_take(to) && !container_hold_live(c, FIEF_THREAD))
		return 0;
	/* look again: the thread may have moved to another CPU while interrupts were on */
	cs = record_hold(&flags);
	if (!cs || !cs->has_task || !same_ref(cs->task.home, home)) {
		record_let_go(cs, &flags);
		binding_put(to, home);
		return 0;
	}
	cs->task.followed = to;
	was = task_rebind(cs, p, to, FIEF_RIGHT_USE | FIEF_RIGHT_READ, true, bpf_ktime_get_ns());
	record_let_go(cs, &flags);
	binding_keep(was, home);
	return 0;
}

static __always_inline bool thread_follows(const struct fief_cpu *cs)
{
	return (cs->task.flags & (FIEF_TASK_FOLLOW | FIEF_TASK_EXPLICIT)) == FIEF_TASK_FOLLOW;
}

/* A thread that follows works for `to` now. */
static __always_inline int thread_follow(struct fief_cpu *cs, struct fief_ref to)
{
	if (same_ref(to, cs->task.binding) && !(cs->task.flags & FIEF_TASK_SLEPT))
		return 0;
	return follow_switch(cs, to);
}

/*
 * The other end of a UNIX connection belongs to what this thread works for now. Not for a program's work: the server that reads what
 * it says would be held by its limit.
 */
static __noinline int peer_label(struct sock *sk)
{
	struct fief_label *label, fresh = {.listener = FIEF_NO_LISTENER};
	struct fief_cpu *cs = this_cpu();
	struct unix_sock *own;
	struct sock *peer;

	if (!cs || !cs->has_task || cs->task.flags & FIEF_TASK_PROGRAM)
		return 0;
	if (!(cs->task.flags & FIEF_TASK_SERVES) && same_ref(cs->task.binding, cs->task.home))
		return 0;
	own = bpf_skc_to_unix_sock(sk);
	if (!own)
		return 0;
	peer = own->peer;
	if (!peer)
		return 0;
	label = bpf_sk_storage_get(&labels, peer, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (label && !label->flags) /* an application has not assigned it */
		label->container = cs->task.binding;
	return 0;
}

static __always_inline int socket_event(struct sock *sk, bool received)
{
	struct fief_cpu *cs = this_thread();
	struct fief_label *label;
	bool follows;

	if (!cs || !cs->has_task || cs->softirq_vector)
		return 0;
	if (!received && sk->__sk_common.skc_family == AF_UNIX)
		return sk->sk_type == SOCK_STREAM ? peer_label(sk) : 0;
	follows = thread_follows(cs);
	if (!follows && !received)
		return 0;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (!label)
		return 0;
	if (received && label->flags & FIEF_LABEL_FRESH)
		label_count(label);
	if (received && !(cs->task.flags & FIEF_TASK_SERVES))
		serves_note();
	return follows ? thread_follow(cs, label->container) : 0;
}
