/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Labelled: the label of a connection as the door makes and changes it.
 *
 * Problem: the core labels the sockets of managed units only, and a guard stands before every server. A connection may be older
 * than the rules, or the kernel may have made it.
 * How: a socket without a label gets one from the verdict on its first request, which waits in `admitted`. A connection that is
 * ruled no longer bears the number of the rules that decided so: under other rules it is checked again.
 * Limits: a connection whose verdict was displaced before its socket was there cannot be told from one that is older than the
 * guard.
 */
#pragma once

#include "admit.bpf.h"
#include "guard.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/labels.bpf.h"

static __always_inline struct fief_container *labelled_container(struct fief_ref ref)
{
	struct fief_container *c = bpf_map_lookup_elem(&containers, &ref.id);

	return c && c->generation == ref.generation ? c : NULL;
}

/* The sockets of a container are counted once somebody has received from them. */
static __always_inline void label_move(struct fief_label *label, struct fief_ref to)
{
	struct fief_container *c;

	if (label->flags & FIEF_LABEL_HOLDS ||
	    (label->container.id == to.id && label->container.generation == to.generation))
		return;
	if (label->flags & FIEF_LABEL_COUNTED) {
		c = labelled_container(label->container);
		if (c)
			__sync_fetch_and_add(&c->sockets, -1);
		c = labelled_container(to);
		if (c)
			__sync_fetch_and_add(&c->sockets, 1);
	}
	label->container = to;
}

/* The door looks no longer at what follows on this connection. */
static __always_inline int later_untrack(const struct front_context *front, struct fief_label *label)
{
	__sync_fetch_and_and(&label->flags, ~(FIEF_LABEL_VERDICT | FIEF_LABEL_LOST));
	label->next = front->guard->rules;
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_PASSED);
	return TCX_NEXT;
}

/* Whether the kernel made this connection, and this is its first request. */
static __always_inline bool first_of_kernel(struct front_context *front, struct fief_label *label, struct tcp_sock *tcp)
{
	if (tcp->bytes_received || label->listener == FIEF_NO_LISTENER || !segment_guard_find(front) ||
	    !requests_ruled(front))
		return false;
	if (label->flags & FIEF_LABEL_PASSED && is_behind(front->packet.seq, tcp->rcv_nxt))
		return false; /* what it is behind has passed a moment ago */
	__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_PASSED);
	label->next = tcp->rcv_nxt;
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_TRACKED);
	return true;
}

/* Whether requests on this connection are to be ruled that came unseen before: these rules did not let it pass. */
static __always_inline bool is_lost(struct front_context *front, struct fief_label *label, struct tcp_sock *tcp)
{
	if (!tcp->bytes_received || !segment_guard_find(front) || !front->guard->shapes)
		return false;
	if (label->flags & FIEF_LABEL_PASSED && label->next == front->guard->rules)
		return false;
	if (!(front->guard->flags & FIEF_GUARD_LATER)) {
		later_untrack(front, label);
		return false;
	}
	__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_PASSED);
	label->next = tcp->rcv_nxt;
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_TRACKED | FIEF_LABEL_LOST);
	return true;
}

/*
 * Labels a socket that has no label: the core has labelled those of managed units, but a guard stands before every server.
 * The verdict upon its first request is still where the door left it. NULL: no request of it is ruled.
 */
static __noinline struct fief_label *label_make(struct front_context *front, struct bpf_sock *sk, struct tcp_sock *tcp)
{
	__u32 begin = tcp->rcv_nxt - (__u32)tcp->bytes_received;
	struct fief_label fresh = {};
	struct fief_admitted *ruled;
	struct fief_flow_key key;

	if (!segment_guard_find(front) || !front->guard->shapes)
		return NULL;
	fresh.listener = front->listener->index;
	flow_key(&front->packet, &key);
	ruled = admitted_find(&key);
	if (ruled && ruled->begin != begin)
		ruled = NULL; /* an earlier connection's */
	if (ruled) {
		/* another CPU may have done so a moment ago, and makes the same label */
		ruled->spent = 1;
		verdict_label(&fresh, ruled);
	} else {
		fresh.container = client_container(front);
		fresh.next = tcp->rcv_nxt;
		if (tcp->bytes_received && front->guard->flags & FIEF_GUARD_LATER)
			/* older than the guard, or its verdict gave way to later ones */
			fresh.flags = FIEF_LABEL_TRACKED | FIEF_LABEL_LOST;
	}
	return bpf_sk_storage_get(&labels, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/*
 * The client acknowledges an answer, and may be silent for long: its verdict becomes a label now, where nobody would find the
 * socket later (displaced.bpf.h).
 */
static __noinline int verdict_settle(struct front_context *front, struct bpf_sock *sk)
{
	struct tcp_sock *tcp;

	if (bpf_sk_storage_get(&labels, sk, 0, 0))
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (tcp && tcp->bytes_received)
		label_make(front, sk, tcp);
	return 0;
}

/* TCP has not taken what made the socket: it is ruled once more. */
static __always_inline void begin_again(struct fief_label *label, struct tcp_sock *tcp)
{
	label->next = tcp->rcv_nxt;
	__sync_fetch_and_and(&label->flags, ~(FIEF_LABEL_VERDICT & ~FIEF_LABEL_TRACKED));
}
