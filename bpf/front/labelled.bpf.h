/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Labelled: the label of a connection as the door makes it.
 *
 * Problem: the core labels the sockets of managed units only, and a guard stands before every server. A connection may be older
 * than the rules, or the kernel may have made it.
 * How: a socket without a label gets one from the verdict on its first request, which waits in `admitted`.
 * Limits: a connection whose verdict was displaced before its socket was there cannot be told from one that is older than the
 * guard.
 */
#pragma once

#include "displaced.bpf.h"
#include "guard.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/labels.bpf.h"

/*
 * Labels a socket that has no label: the core has labelled those of managed units, but a guard stands before every server.
 * The verdict upon its first request is still where the door left it. NULL: no request of it is ruled.
 */
static __noinline struct fief_label *label_make(struct front_context *front, struct bpf_sock *sk, struct tcp_sock *tcp)
{
	__u32 begin = tcp->rcv_nxt - (__u32)tcp->bytes_received;
	struct fief_label fresh = {}, *label;
	struct fief_admitted *ruled;
	struct fief_flow_key key;

	if (!segment_guard_find(front) || !front->guard->shapes)
		return NULL;
	fresh.listener = front->listener.index;
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
	label = bpf_sk_storage_get(&labels, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	/* NULL too where another CPU made it at the same moment */
	return label ? label : bpf_sk_storage_get(&labels, sk, 0, 0);
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
