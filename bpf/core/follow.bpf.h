/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Follow: an unmodified server's thread takes the container of the socket it works on.
 *
 * Problem: an event loop serves all classes in one thread and knows nothing of containers.
 * How: each receive and send on a labelled socket rebinds the thread. After a voluntary sleep the time is pending until the
 * first socket event tells its container. Over a UNIX connection the sender's container goes with the bytes: whoever receives
 * them, as a persistent back end does (FastCGI), follows it too. What comes by a connection that was accepted and has no container
 * below the thread's home is the home's own work, not that of the client before.
 * Limits: only within the subtree of the thread's home, never a thread that bound itself by a call; work between the last event
 * of one connection and the first of the next is charged to the former. So are requests without a container over a socket pair: nothing
 * tells which of its ends asks.
 */
#pragma once

#include "costly.bpf.h"
#include "labels.bpf.h"
#include "switch.bpf.h"

/* The time until now is charged to the client before. Interrupts are off. */
static __noinline int client_leave(struct fief_cpu *cs, __u64 now)
{
	steal_settle(cs, now);
	charge_until(cs, now);
	cost_settle(cs, true);
	return 0;
}

/* Of the same container, another client's connection. */
static __noinline int client_switch(__u64 client)
{
	struct fief_cpu *cs;
	unsigned long flags;

	cs = record_hold(&flags);
	if (cs && cs->has_task) {
		client_leave(cs, bpf_ktime_get_ns());
		cs->task.client = client;
	}
	record_let_go(cs, &flags);
	return 0;
}

/* Whether the thread works for `to` from now on: it is there, and below the thread's home. */
static __noinline int follow_switch(struct fief_cpu *cs, struct fief_ref to, __u64 client)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_container *c = container_get(to);
	struct fief_ref was, home;
	unsigned long flags;
	__u32 rights = FIEF_RIGHT_USE | FIEF_RIGHT_READ;
	__u64 now;

	if (!c)
		return 0;
	if (!same_ref(cs->task.followed, to)) {
		if (!container_below(to, cs->task.home))
			return 0;
	}
	home = cs->task.home;
	if (!same_ref(to, home) && !kept_take(to) && !live_hold(c, to, FIEF_THREAD))
		return 0;
	/* look again: the thread may have moved to another CPU while interrupts were on */
	cs = record_hold(&flags);
	if (!cs || !cs->has_task || !same_ref(cs->task.home, home)) {
		record_let_go(cs, &flags);
		binding_put(to, home);
		return 0;
	}
	cs->task.followed = to;
	now = bpf_ktime_get_ns();
	if (cs->task.client != client)
		client_leave(cs, now);
	if (same_ref(to, home))
		rights = home_rights(&cs->task);
	was = task_rebind(cs, p, to, rights, true, client, now);
	record_let_go(cs, &flags);
	binding_keep(was, home);
	return 1;
}

static __always_inline bool thread_follows(const struct fief_cpu *cs)
{
	return (cs->task.flags & (FIEF_TASK_FOLLOW | FIEF_TASK_EXPLICIT)) == FIEF_TASK_FOLLOW;
}

/*
 * A thread that follows works for `to` now, and for this client of it; 0: nobody asks, or it is not known. Whether it may: `to` has not
 * ended, and is below its home.
 */
static __always_inline bool thread_follow(struct fief_cpu *cs, struct fief_ref to, __u64 client)
{
	if (!same_ref(to, cs->task.binding) || cs->task.flags & FIEF_TASK_SLEPT)
		return follow_switch(cs, to, client);
	if (client != cs->task.client)
		client_switch(client);
	return true;
}

/* The other end of the connection that a thread works on. */
static __always_inline __u64 socket_client(struct sock *sk, const struct fief_label *label)
{
	__u32 words[4];

	if (sk->__sk_common.skc_family == AF_UNIX)
		return label->body;
	if (!label_accepts(label))
		return 0;
	if (sk->__sk_common.skc_family == AF_INET)
		mapped_ipv4(sk->__sk_common.skc_daddr, words);
	else
		for (int i = 0; i < 4; i++)
			words[i] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[i];
	return client_word((__u8 *)words);
}

/*
 * Whether requests come by the socket: it was accepted. By a socket that the thread connected it asks others, for whom it works; and so it may
 * by datagrams, whose answers come to a port or name of its own. An accepted socket has its listener's backlog (sk_clone_lock copies
 * it), over UNIX its listener's name; of multipath TCP the path has it.
 */
static __noinline int brings_requests(struct sock *sk)
{
	__u16 family = sk->__sk_common.skc_family;
	const struct sock *path = sk;
	struct unix_sock *own;

	if (family == AF_UNIX) {
		own = bpf_skc_to_unix_sock(sk);
		return own && own->addr && sk->sk_type != SOCK_DGRAM;
	}
	if ((family != AF_INET && family != AF_INET6) || sk->sk_protocol == IPPROTO_UDP)
		return 0;
	if (sk->sk_protocol == IPPROTO_MPTCP) {
		if (!bpf_core_type_exists(struct mptcp_sock))
			return 0;
		path = bpf_core_cast(sk, struct mptcp_sock)->first;
	}
	return path && path->sk_max_ack_backlog;
}

/*
 * The other end of a UNIX connection belongs to what this thread works for now. Not for a program's work: the server that reads what
 * it says would be held by its limit. What a thread sends that neither serves nor is bound is nobody's, also where the connection was
 * somebody's before.
 */
static __noinline int peer_label(struct sock *sk)
{
	struct fief_label *label, fresh = {.listener = FIEF_NO_LISTENER};
	struct fief_cpu *cs = this_cpu();
	struct unix_sock *own;
	struct sock *peer;
	bool nobodys;

	if (!cs || !cs->has_task || cs->task.flags & FIEF_TASK_PROGRAM)
		return 0;
	nobodys = !(cs->task.flags & FIEF_TASK_SERVES) && same_ref(cs->task.binding, cs->task.home);
	own = bpf_skc_to_unix_sock(sk);
	if (!own)
		return 0;
	peer = own->peer;
	if (!peer)
		return 0;
	if (nobodys)
		label = bpf_sk_storage_get(&labels, peer, 0, 0);
	else
		label = bpf_sk_storage_get(&labels, peer, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (label && !label->flags) { /* an application has not assigned it */
		label->container = nobodys ? (struct fief_ref){FIEF_NO_ID, 0} : cs->task.binding;
		label->body = nobodys ? 0 : cs->task.client;
	}
	return 0;
}

/* `takes`: it got bytes, for good, or sent some. */
static __always_inline int socket_event(struct sock *sk, bool received, bool takes)
{
	struct fief_cpu *cs = this_thread();
	struct fief_label *label;
	bool follows;

	if (!cs || !cs->has_task || cs->softirq_vector)
		return 0;
	ring_look(cs, 0);
	if (!received && sk->__sk_common.skc_family == AF_UNIX)
		return sk->sk_type == SOCK_STREAM ? peer_label(sk) : 0;
	follows = thread_follows(cs);
	if (!follows && !received && !cs->scheduled)
		return 0;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label) {
		if (received && label->flags & FIEF_LABEL_FRESH)
			label_count(sk, label);
		if (takes) /* an assigned one that no client of the listener made has none */
			served_client(cs, label->listener, received);
		if (received && !(cs->task.flags & FIEF_TASK_SERVES))
			serves_note();
		if (follows && thread_follow(cs, label->container, cs->by_client ? socket_client(sk, label) : 0))
			return 0;
	}
	if (follows && received && takes && brings_requests(sk))
		thread_follow(cs, cs->task.home, 0);
	return 0;
}
