/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Labelled: the label of a connection as the door makes it.
 *
 * Problem: the core labels the sockets of managed units only, and a guard stands before every server. A connection may be older
 * than the rules, or the kernel may have made it.
 * How: a socket without a label gets one from the verdict on its first request, which waits in `admitted`.
 * A label takes memory of its socket. That is bounded (net.core.optmem_max), and a client can use it up: what its server sends with
 * MSG_ZEROCOPY counts until it is acknowledged. So where none is left this is no failure of ours that lets requests pass: they find no room,
 * and the policy decides (`no-room`). A body passes: where it ends the verdict says.
 * Limits: a connection whose verdict was displaced before its socket was there cannot be told from one that is older than the
 * guard.
 */
#pragma once

#include "cut.bpf.h"
#include "displaced.bpf.h"
#include "guard.bpf.h"
#include "refuse.bpf.h"
#include "taken.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/labels.bpf.h"

/*
 * What the label of a socket that has none is to say, in memory of the CPU: the verdict upon its first request is still where the door left
 * it. NULL: no request of it is ruled.
 */
static __noinline struct fief_label *label_draft(struct front_context *front, struct tcp_sock *tcp)
{
	__u32 begin = tcp->rcv_nxt - (__u32)tcp->bytes_received;
	struct displaced *with = displaced_get();
	struct fief_admitted *ruled;
	struct fief_flow_key key;
	struct fief_label *fresh;

	if (!with || !segment_guard_find(front) || !front->guard->shapes)
		return NULL;
	fresh = &with->fresh;
	__builtin_memset(fresh, 0, sizeof(*fresh));
	fresh->listener = front->listener.index;
	flow_key(&front->packet, &key);
	ruled = admitted_find(&key);
	if (ruled && ruled->begin != begin)
		ruled = NULL; /* an earlier connection's */
	if (ruled) {
		/* another CPU may have done so a moment ago, and makes the same label */
		ruled->spent = 1;
		verdict_label(fresh, ruled);
	} else {
		fresh->container = client_container(front);
		fresh->next = tcp->rcv_nxt;
		if (tcp->bytes_received && front->guard->flags & FIEF_GUARD_LATER)
			/* older than the guard, or its verdict gave way to later ones */
			fresh->flags = FIEF_LABEL_TRACKED | FIEF_LABEL_LOST;
	}
	return fresh;
}

/*
 * Labels a socket that has no label: the core has labelled those of managed units, but a guard stands before every server. NULL: no
 * request of it is ruled, or no memory is left for it.
 */
static __noinline struct fief_label *label_make(struct front_context *front, struct bpf_sock *sk, struct tcp_sock *tcp)
{
	struct fief_label *fresh = label_draft(front, tcp), *label;

	if (!fresh)
		return NULL;
	label = bpf_sk_storage_get(&labels, sk, fresh, BPF_SK_STORAGE_GET_F_CREATE);
	/* once more: NULL too where another CPU gave the socket its first storage at that moment, this one or another program's */
	return label ? label : bpf_sk_storage_get(&labels, sk, fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Whether a packet would be ruled on a socket with this label, as one that has it says (arrive.bpf.h). */
static __always_inline bool draft_rules(const struct front_context *front, const struct fief_label *draft,
					const struct tcp_sock *tcp)
{
	const struct packet *p = &front->packet;
	bool fresh = !tcp->bytes_received;

	if (draft->flags & FIEF_LABEL_TAIL)
		return true;
	if (draft->flags & FIEF_LABEL_TRACKED)
		return fresh || p->odd || is_behind(p->seq + p->payload_length, draft->next);
	if (fresh)
		return requests_ruled(front);
	return front->guard->flags & FIEF_GUARD_LATER &&
	       !(draft->flags & FIEF_LABEL_PASSED && draft->next == front->guard->rules);
}

/* Bytes to a socket without a label, to a listener whose requests are ruled: no memory is left for it, unless its guard has just gone. */
static __noinline int unlabelled_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *tcp)
{
	struct fief_label *draft = label_draft(front, tcp);
	struct stream *stream = stream_get();

	if (!draft || !stream || !draft_rules(front, draft, tcp))
		return TCX_NEXT;
	if (front->packet.odd)
		return shape_rule(front);
	if (!would_be_taken(skb, &front->packet, tcp, &stream->with))
		return untaken_strip(skb, front, stream, tcp);
	unread_rule(front, &stream->ruling, FIEF_UNREAD_NO_ROOM);
	return stream->ruling.refused ? refuse_at(skb, front, stream, tcp) : TCX_NEXT;
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
