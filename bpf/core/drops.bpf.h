/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Drops: SYNs that the kernel dropped at a listening socket, because one of its queues was full.
 *
 * Problem: the server learns nothing of the drop, and no hook sees it (Resource Containers, 5.7).
 * How: the socket counts its drops. Our hook sees each SYN before the kernel decides about it. So the growth of the counter up
 * to the next SYN, or up to a reader's query, is attributed to the SYN before. The notice for the server changes at most once
 * in FIEF_NOTICE_NS.
 * Limits: if two CPUs take SYNs at the same time, the notice may name the wrong one; the number is exact.
 */
#pragma once

#include "classify.bpf.h"
#include "containers.bpf.h"
#include "counted.bpf.h"
#include "flow/received.bpf.h"
#include "flow/steered.bpf.h"
#include "maps/dropped.bpf.h"
#include "maps/labels.bpf.h"
#include "maps/notices.bpf.h"

/* Which queue overflowed: by listener and class, among the verdicts of the front door. */
static __noinline int queue_count(struct fief_ref class_, __u32 listener, __u32 n)
{
	struct fief_verdict_key key = {
	    .container = class_,
	    .rule = FIEF_NO_ID,
	    .listener = listener,
	    .reason = FIEF_SYN_QUEUE,
	};

	verdict_add(&key, n);
	return 0;
}

/* For whoever follows the front door's notices. */
static __noinline int queue_tell(const struct fief_dropped *d, __u32 listener)
{
	struct fief_notice *notice;
	struct fief_told *told;
	__u64 number;

	told = notice_begin(&number);
	if (!told)
		return 0;
	notice = &told->notice;
	__builtin_memset(notice, 0, sizeof(*notice));
	notice->time_ns = d->time_ns;
	__builtin_memcpy(notice->source, d->told.source, 16);
	__builtin_memcpy(notice->destination, d->told.destination, 16);
	notice->source_port = d->told.source_port;
	notice->destination_port = d->told.destination_port;
	notice->verdict.container = d->latest_of;
	notice->verdict.rule = FIEF_NO_ID;
	notice->verdict.listener = listener;
	notice->verdict.reason = FIEF_SYN_QUEUE;
	notice->count = d->count;
	notice_end(told, number);
	return 0;
}

/* Puts down what the counter has grown by, `grown`, and renews the notice; true: it is new. */
static __always_inline bool drops_take(struct fief_dropped *d, struct fief_label *label, __u32 counter, __u64 now,
				       __u32 *grown, struct fief_ref *of)
{
	__s32 more;
	bool due;

	bpf_spin_lock(&d->lock);
	*of = d->latest_of;
	more = counter - label->drops;
	/* it was read before the lock: another CPU may have put down more by now */
	if (more < 0)
		more = 0;
	if (more) {
		label->drops += more;
		d->dropped += more;
		d->untold += more;
		d->untold_ends = d->latest;
	}
	due = d->untold && (!d->time_ns || now - d->time_ns >= FIEF_NOTICE_NS);
	if (due) {
		d->told = d->untold_ends;
		d->count = d->untold;
		d->untold = 0;
		d->time_ns = now;
	}
	bpf_spin_unlock(&d->lock);
	*grown = more;
	return due;
}

/* `sk`: the listening socket. */
static __always_inline void drops_settle(struct fief_dropped *d, struct fief_label *label, const struct sock *sk)
{
	__u32 counter = sk->sk_drops.counter, n;
	struct fief_container *c;
	struct fief_ref of;
	bool of_policy;

	if (counter == label->drops && !d->untold)
		return;
	of_policy = label->listener != FIEF_NO_LISTENER && is_of_steered(sk);
	if (drops_take(d, label, counter, bpf_ktime_get_ns(), &n, &of) && of_policy)
		queue_tell(d, label->listener);
	if (!n)
		return;
	c = container_get(of);
	if (!c)
		return;
	__sync_fetch_and_add(&c->usage.syns_dropped, n);
	if (of_policy)
		queue_count(of, label->listener, n);
}

static __always_inline void ends_read(struct __sk_buff *skb, const __u8 *source, struct fief_ends *ends)
{
	__builtin_memcpy(ends->source, source, sizeof(ends->source));
	received_address(skb, false, ends->destination);
	received_ports(skb, &ends->source_port, &ends->destination_port);
}

/* A SYN for the container `to` comes to a listening socket. */
static __always_inline void syn_drops_look(struct __sk_buff *skb, struct bpf_sock *sk, struct fief_label *label,
					   struct fief_ref to, const __u8 *source)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct fief_dropped *d = bpf_sk_storage_get(&dropped, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	struct fief_ends ends = {};

	if (!tcp || !d)
		return;
	drops_settle(d, label, &tcp->inet_conn.icsk_inet.sk);
	ends_read(skb, source, &ends);
	bpf_spin_lock(&d->lock);
	d->latest = ends;
	d->latest_of = to;
	bpf_spin_unlock(&d->lock);
}
