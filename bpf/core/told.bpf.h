/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Told: notices to a server about connections that it never saw: those that the kernel dropped at its socket, and those that
 * the policy refused before. The later of the two is the notice.
 */
#pragma once

#include "drops.bpf.h"
#include "maps/last_notices.bpf.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

static __always_inline void refusals_told(struct fief_drops *answer, __u32 listener)
{
	struct fief_notice *last = bpf_map_lookup_elem(&last_notices, &listener);

	answer->refused = refused_sum(listener);
	if (!last || last->time_ns <= answer->time_ns)
		return;
	answer->time_ns = last->time_ns;
	__builtin_memcpy(answer->source, last->source, sizeof(answer->source));
	answer->count = last->count;
	answer->reason = last->verdict.reason;
}

static __always_inline int drops_get(struct bpf_sockopt *ctx, struct bpf_sock *sk)
{
	struct fief_drops *answer = ctx->optval;
	struct fief_dropped *d;
	struct fief_label *label;
	struct sock *kernel;

	if ((void *)(answer + 1) > ctx->optval_end)
		return -EINVAL;
	if (sk->protocol != IPPROTO_TCP || sk->state != BPF_TCP_LISTEN)
		return -EINVAL;
	__builtin_memset(answer, 0, sizeof(*answer));
	ctx->optlen = sizeof(*answer);
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (!label)
		return 0;
	d = bpf_sk_storage_get(&dropped, sk, 0, 0);
	if (d) {
		kernel = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
		drops_settle(d, label, kernel->sk_drops.counter);
		bpf_spin_lock(&d->lock);
		answer->dropped = d->dropped;
		answer->time_ns = d->time_ns;
		answer->count = d->count;
		__builtin_memcpy(answer->source, d->told.source, sizeof(answer->source));
		bpf_spin_unlock(&d->lock);
		answer->reason = answer->time_ns ? FIEF_SYN_QUEUE : FIEF_REASON_NONE;
	}
	if (label->listener != FIEF_NO_LISTENER)
		refusals_told(answer, label->listener);
	return 0;
}
