/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Drops: SYNs that the kernel dropped at a listening socket, because a queue of it was full.
 *
 * Problem: the server is told nothing, and no hook sees the drop (Resource Containers, 5.7).
 * How: the socket counts its drops. Our hook sees each SYN before the kernel decides about it, so what the counter has
 * grown by at the next SYN, or when somebody asks, is put down to the SYN before. The notice for the server changes at
 * most once in FIEF_NOTICE_NS.
 * Limits: of SYNs that two CPUs take at the same time, the wrong one may be named; the number is exact.
 */
#pragma once

#include "containers.bpf.h"
#include "maps/dropped.bpf.h"
#include "maps/labels.bpf.h"
#include "maps/verdicts.bpf.h"

/* Which queue overflowed: by listener and class, among the verdicts of the front door. */
static __noinline int queue_count(struct fief_ref class_, __u32 listener, __u32 n)
{
	struct fief_verdict_key key = {
	    .container = class_,
	    .rule = FIEF_NO_ID,
	    .listener = listener,
	    .reason = FIEF_SYN_QUEUE,
	};
	__u64 *count, add = n;

	count = bpf_map_lookup_elem(&verdicts, &key);
	if (count)
		*count += add;
	else
		bpf_map_update_elem(&verdicts, &key, &add, BPF_ANY);
	return 0;
}

/* Renews the notice, if it is due. */
static __always_inline void drops_tell(struct fief_dropped *d)
{
	__u64 now;

	if (!d->untold)
		return;
	now = bpf_ktime_get_ns();
	if (d->time_ns && now - d->time_ns < FIEF_NOTICE_NS)
		return;
	__builtin_memcpy(d->source, d->untold_source, sizeof(d->source));
	d->count = d->untold;
	d->untold = 0;
	d->time_ns = now;
}

/* `counter`: the socket's own, now. */
static __always_inline void drops_settle(struct fief_dropped *d, struct fief_label *label, __u32 counter)
{
	struct fief_container *c;
	__u32 n = counter - label->drops;

	if (n) {
		label->drops = counter;
		d->dropped += n;
		d->untold += n;
		__builtin_memcpy(d->untold_source, d->latest, sizeof(d->latest));
	}
	drops_tell(d);
	if (!n)
		return;
	c = container_get(d->latest_of);
	if (!c)
		return;
	__sync_fetch_and_add(&c->usage.syns_dropped, n);
	if (label->listener != FIEF_NO_LISTENER)
		queue_count(d->latest_of, label->listener, n);
}

/* A SYN for the container `to` comes to a listening socket. */
static __always_inline void drops_look(struct bpf_sock *sk, struct fief_label *label, struct fief_ref to,
				       const __u8 *source)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct fief_dropped *d = bpf_sk_storage_get(&dropped, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!tcp || !d)
		return;
	drops_settle(d, label, tcp->inet_conn.icsk_inet.sk.sk_drops.counter);
	__builtin_memcpy(d->latest, source, sizeof(d->latest));
	d->latest_of = to;
}
