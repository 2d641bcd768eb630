/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Told: notices to a server about connections that it never saw: those that the kernel dropped at its socket, and those that
 * the policy refused before. The later of the two is the notice.
 */
#pragma once

#include "drops.bpf.h"
#include "grown.bpf.h"
#include "maps/last_notices.bpf.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

/* Whether the server's unit has some class of the listener below its home: who only has a free address of the listener has none. */
static __noinline int serves_any(struct bpf_sock *sk, const struct fief_label *label, struct fief_ref home,
				 bool only_ipv6)
{
	struct fief_listener *listener;
	__u32 address[4];
	bool any = false;
	int i;

	if (label->flags & FIEF_LABEL_CLASS_LISTENER)
		return container_below(label->container, home);
	socket_address(sk, address);
	listener = find_listener(policy_slot(), address, sk->src_port);
	if (!listener)
		listener = bound_listener(address, sk->src_port, only_ipv6);
	if (!listener || listener->index != label->listener)
		return false;
	bpf_for (i, 0, FIEF_MAX_CLASSES) {
		if (i >= listener->classes || i < 0 || i >= FIEF_MAX_CLASSES)
			break;
		any = container_below(listener->class_[i].container, home);
		if (any)
			break;
	}
	return any;
}

/* Sources are told that the server's unit would have been charged for, and no others. */
static __always_inline void refusals_told(struct fief_drops *answer, struct bpf_sock *sk, const struct sock *kernel,
					  const struct fief_label *label)
{
	struct fief_ref home = socket_home(kernel);
	__u32 listener = label->listener;
	struct fief_notice *last;

	if (!is_of_steered(kernel) ||
	    !serves_any(sk, label, home, BPF_CORE_READ_BITFIELD(kernel, __sk_common.skc_ipv6only)))
		return;
	last = bpf_map_lookup_elem(&last_notices, &listener);
	answer->refused = refused_sum(listener);
	if (!last || last->time_ns <= answer->time_ns || !container_below(last->verdict.container, home))
		return;
	answer->time_ns = last->time_ns;
	__builtin_memcpy(answer->source, last->source, sizeof(answer->source));
	answer->count = last->count;
	answer->reason = last->verdict.reason;
}

static __always_inline int drops_get(struct bpf_sockopt *ctx, struct bpf_sock *sk)
{
	struct fief_drops answer = {};
	struct fief_dropped *d;
	struct fief_label *label;
	struct sock *kernel;

	if (sk->protocol != IPPROTO_TCP || sk->state != BPF_TCP_LISTEN)
		return -EINVAL;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (!label)
		return record_give(ctx, &answer, sizeof(answer), DROPS_FIRST);
	kernel = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
	d = bpf_sk_storage_get(&dropped, sk, 0, 0);
	if (d) {
		drops_settle(d, label, kernel);
		bpf_spin_lock(&d->lock);
		answer.dropped = d->dropped;
		answer.time_ns = d->time_ns;
		answer.count = d->count;
		__builtin_memcpy(answer.source, d->told.source, sizeof(answer.source));
		bpf_spin_unlock(&d->lock);
		answer.reason = answer.time_ns ? FIEF_SYN_QUEUE : FIEF_REASON_NONE;
	}
	if (label->listener != FIEF_NO_LISTENER)
		refusals_told(&answer, sk, kernel, label);
	return record_give(ctx, &answer, sizeof(answer), DROPS_FIRST);
}
