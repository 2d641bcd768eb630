/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Labels: which container a socket belongs to, for every later stage to read.
 *
 * Problem: packets, accepts and socket events must find their container without a search.
 * How: the label lies in the socket's storage. A listener's label is cloned to the sockets accepted from it; for a listener
 * that serves several classes the class of the remote address replaces it at the end of the handshake. A socket of a managed
 * unit without a label belongs to its unit. So does one whose class is not below the unit's home: whoever listens on an address that a
 * listener of the policy covers, and no other server has, would give its packets to somebody else's class. In another network namespace
 * than the policy's all addresses are free: there classes are charged in the same way, and nothing is told of a listener.
 * Limits: a clone made while the container ends is stale; its socket then belongs to the unit. A connection keeps its class where its
 * unit gets another home.
 */
#pragma once

#include "costly.bpf.h"
#include "record.bpf.h"
#include "classify.bpf.h"
#include "drops.bpf.h"
#include "flow/received.bpf.h"
#include "flow/socket.bpf.h"
#include "flow/steered.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/labels.bpf.h"
#include "maps/units.bpf.h"

static __always_inline struct fief_ref unattributed(void)
{
	return (struct fief_ref){FIEF_UNATTRIBUTED, 0};
}

/* Home of the managed cgroup that the packet's socket was made in, or below. */
static __always_inline struct fief_ref unit_home(struct __sk_buff *skb)
{
	__u64 cgroup = bpf_skb_cgroup_id(skb);
	struct fief_unit *unit = bpf_map_lookup_elem(&units, &cgroup);
	int level;

	bpf_for (level, 0, UNIT_DEPTH) {
		if (unit)
			return unit->home;
		cgroup = bpf_skb_ancestor_cgroup_id(skb, level);
		if (!cgroup)
			break;
		unit = bpf_map_lookup_elem(&units, &cgroup);
	}
	return unattributed();
}

/* The same where there is no packet. */
static __always_inline struct fief_ref socket_home(const struct sock *sk)
{
	struct cgroup *cgroup = sk->sk_cgrp_data.cgroup;
	__u64 id = cgroup->kn->id;
	struct fief_unit *unit = bpf_map_lookup_elem(&units, &id);

	if (!unit)
		unit = unit_of(cgroup);
	return unit ? unit->home : unattributed();
}

/* A class of clients for a label of a connection to remember, in `drops`, which only listeners have; 0: none. */
static __always_inline __u32 class_mark(struct fief_ref class)
{
	return (class.id ^ class.generation << 20) + 1;
}

#define POLICYS_LISTENER (FIEF_LABEL_LISTENER | FIEF_LABEL_CLASS_LISTENER)

/* Whether packets are charged to `to`, the label's container, with no look at the unit: an application chose it, or it was found below. */
static __always_inline bool label_is_settled(const struct fief_label *label, struct fief_ref to)
{
	if (label->flags & (FIEF_LABEL_HOLDS | POLICYS_LISTENER))
		return label->flags & FIEF_LABEL_HOLDS;
	return label->drops == class_mark(to);
}

/* Whether the policy or the door may charge packets to `to`, the label's container, in a unit of this home; if so, that is remembered. */
static __always_inline bool label_settle(struct fief_label *label, struct fief_ref to, struct fief_ref home)
{
	if (!container_below(to, home))
		return false;
	if (!(label->flags & POLICYS_LISTENER))
		label->drops = class_mark(to);
	return true;
}

/* Whose the packets of a socket are; `label`: NULL, it has none. */
static __always_inline struct fief_ref socket_container(struct __sk_buff *skb, struct fief_label *label)
{
	struct fief_ref to, home;

	if (!label)
		return unit_home(skb);
	to = label->container;
	if (!container_alive(to))
		return unit_home(skb);
	if (label_is_settled(label, to))
		return to;
	home = unit_home(skb);
	return label_settle(label, to, home) ? to : home;
}

/* A client of the other family than the policy names. */
static __always_inline bool is_unnamed(const struct fief_label *label, const void *source)
{
	const __u32 *words = source;

	return label->flags & FIEF_LABEL_IPV4 && (words[0] || words[1] || words[2] != MAPPED_PREFIX);
}

/*
 * Whose packet this is, from `source` to a listening socket with this label. That of a connection which was disconnected and listens now
 * is neither an application's nor the policy's.
 */
static __always_inline struct fief_ref listener_container(struct __sk_buff *skb, struct bpf_sock *sk,
							  struct fief_label *label, const __u8 *source)
{
	struct fief_ref to = label->container, home;
	struct fief_container *c;

	if (!(label->flags & FIEF_LABEL_HOLDS)) {
		home = unit_home(skb);
		if (is_unnamed(label, source))
			return home;
		if (label->flags & FIEF_LABEL_LISTENER) {
			struct fief_client *client = classify(policy_slot(), label->listener, source);

			if (client)
				to = client->container;
		}
		if (!container_below(to, home))
			to = home;
	}
	c = received_syn(skb) ? container_get(to) : NULL;
	if (c) {
		__sync_fetch_and_add(&c->usage.syns_seen, 1);
		if (label->flags & (FIEF_LABEL_HOLDS | POLICYS_LISTENER))
			syn_drops_look(skb, sk, label, to, source);
	}
	return container_alive(to) ? to : unit_home(skb);
}

/* Whose packet this is; `sk` is the socket that it reached, with its label. */
static __always_inline struct fief_ref packet_container(struct __sk_buff *skb, struct bpf_sock *sk,
							struct fief_label *label, bool listens)
{
	__u8 source[16];

	if (label && listens && received_address(skb, true, source))
		return listener_container(skb, sk, label, source);
	return socket_container(skb, label);
}

/* Whether the other end of the socket is a client: it listens, or was accepted, and no application assigned it. */
static __always_inline bool label_accepts(const struct fief_label *label)
{
	return !(label->flags & FIEF_LABEL_HOLDS);
}

/* Whose client's packet this is, while that is counted. */
static __always_inline __u64 packet_client(struct __sk_buff *skb, const struct fief_label *label)
{
	struct fief_cpu *cs = this_cpu();
	__u8 source[16];

	if (!cs || !cs->by_client || !label || !label_accepts(label) || !received_address(skb, true, source))
		return 0;
	return client_word(source);
}

/* A listener on an address of the policy remembers which; class listeners were labelled before bind(). */
static __always_inline void listen_label(struct bpf_sock_ops *ops)
{
	struct fief_label fresh = {}, *label;
	struct fief_listener *listener;
	struct bpf_sock *sk = ops->sk;
	__u8 address[16];

	if (!sk)
		return;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label)
		return;
	ops_address(ops, true, address);
	fresh.flags = FIEF_LABEL_LISTENER;
	listener = find_listener(policy_slot(), address, ops->local_port);
	if (!listener) {
		/* a socket of both families, and a policy for one */
		listener = bound_listener(address, ops->local_port, is_ipv6_only(sk));
		fresh.flags |= FIEF_LABEL_IPV4;
	}
	if (!listener)
		return;
	fresh.container = listener->class_[0].container;
	fresh.listener = listener->index;
	bpf_sk_storage_get(&labels, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/* What the door ruled about this connection's first request, once; NULL: nothing. */
static __always_inline struct fief_admitted *admitted_take(struct bpf_sock_ops *ops)
{
	struct fief_flow_key key;

	ops_flow_key(ops, &key);
	return admitted_spend(&key, ops->rcv_nxt);
}

/*
 * The label of the socket that a server's threads work on, where it is not the one that packets reach: that of a connection
 * over several paths stands above its paths. The first path's class is the connection's, and later paths take it over. (Where
 * the door rules requests, which could change the class later, connections have one path.) Whether this is a later path.
 */
static __always_inline bool above_label(struct bpf_sock *sk, struct fief_label *label)
{
	struct fief_label *above, fresh = *label;
	struct mptcp_sock *connection;

	if (!bpf_core_type_exists(struct mptcp_sock))
		return false;
	connection = bpf_skc_to_mptcp_sock(sk);
	if (!connection)
		return false;
	label->flags &= ~FIEF_LABEL_FRESH; /* nobody receives from a path */
	above = bpf_sk_storage_get(&labels, connection, 0, 0);
	if (above) {
		label->container = above->container;
		return true;
	}
	fresh.owner = (__u64)(unsigned long)connection;
	fresh.flags = FIEF_LABEL_FRESH;
	bpf_sk_storage_get(&labels, connection, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	return false;
}

/* The handshake has ended: the connection's class is decided here, unless the door has decided it by the request. */
static __always_inline void established_label(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct fief_admitted *ruled;
	struct fief_container *c;
	struct fief_client *client;
	struct fief_label *label;
	struct tcp_sock *tcp;
	struct fief_ref to;
	__u8 source[16];
	bool assigned, here;

	if (!sk)
		return;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (!label)
		return;
	if (label->flags & FIEF_LABEL_HOLDS && label->owner == (__u64)(unsigned long)sk)
		return; /* no clone, but the label of a socket that has connected to itself */
	assigned = label->flags & FIEF_LABEL_HOLDS;
	if (label->flags & FIEF_LABEL_LISTENER) {
		ops_address(ops, false, source);
		client = classify(policy_slot(), label->listener, source);
		if (is_unnamed(label, source)) {
			label->container = (struct fief_ref){FIEF_NO_ID, 0};
			label->listener = FIEF_NO_LISTENER;
		} else if (client) {
			label->container = client->container;
			label->rule = client->rule;
		}
	}
	here = is_steered(sk);
	if (!here)
		label->listener = FIEF_NO_LISTENER;
	label->flags = FIEF_LABEL_FRESH;
	ruled = here ? admitted_take(ops) : NULL;
	if (ruled) {
		assigned = false;
		label->container = ruled->container;
		label->next = ruled->next;
		label->body = ruled->body;
		label->answer_at = ruled->answer_at + ruled->interim;
		label->flags |= ruled->tracked & FIEF_LABEL_VERDICT;
	}
	label->owner = (__u64)(unsigned long)sk;
	to = label->container;
	label->drops = assigned ? class_mark(to) : 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!assigned && tcp) {
		struct fief_ref home = socket_home(&tcp->inet_conn.icsk_inet.sk);

		if (!label_settle(label, to, home))
			to = home;
	}
	if (above_label(sk, label))
		return;
	c = container_get(to);
	if (c)
		__sync_fetch_and_add(&c->usage.accepts, 1);
}

/* Takes a socket out of its container's count, once. */
static __always_inline void label_uncount(struct fief_label *label)
{
	__u32 flags = __sync_fetch_and_and(&label->flags, ~FIEF_LABEL_COUNTED);
	struct fief_container *c;

	if (!(flags & FIEF_LABEL_COUNTED))
		return;
	c = container_get(label->container);
	if (c)
		__sync_fetch_and_add(&c->sockets, -(1));
}

/*
 * A thread received from the socket, so it was accepted: only now it counts, since TCP ends a connection that nobody
 * accepted without a close. (The state callback would tell its end, at 0.6 us a connection.) One that its unit is charged for is in no
 * class. So each time that it got another class (front/tracked.bpf.h).
 */
static __always_inline void label_count(const struct sock *sk, struct fief_label *label)
{
	__u32 flags = __sync_fetch_and_and(&label->flags, ~FIEF_LABEL_FRESH);
	struct fief_container *c;
	struct fief_ref to;

	if (!(flags & FIEF_LABEL_FRESH))
		return;
	to = label->container;
	if (!label_is_settled(label, to) && !label_settle(label, to, socket_home(sk)))
		return;
	c = container_get(to);
	if (!c)
		return;
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_COUNTED);
	__sync_fetch_and_add(&c->sockets, 1);
}

/* The socket is closed for the last time. */
static __always_inline void label_release(struct bpf_sock *sk, __u64 owner)
{
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	__u32 flags;

	if (!label || label->owner != owner)
		return;
	label_uncount(label);
	flags = label->flags;
	label->flags = 0;
	if (flags & FIEF_LABEL_HOLDS)
		container_put(label->container.id, FIEF_HANDLE);
}
