/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The front door: what happens to a connection before a server accepts it. A table of contents; the parts are beside
 * it.
 *
 *   steer     which listening socket a connection reaches
 *   filter    listeners with a filter of their own, as a connection finds them
 *
 * It reuses the core's maps. What servers register when they listen (register, filter) is called from the core's
 * programs, since each hook has one program.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "abi.h"
#include "kernel.bpf.h"

#include "steer.bpf.h"
#include "filter.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/blooms.bpf.h"
#include "maps/buckets.bpf.h"
#include "maps/guards.bpf.h"
#include "maps/loads.bpf.h"
#include "maps/meters.bpf.h"
#include "maps/notices.bpf.h"
#include "maps/patterns.bpf.h"
#include "maps/secrets.bpf.h"
#include "maps/source_buckets.bpf.h"
#include "maps/sources.bpf.h"
#include "maps/thresholds.bpf.h"
#include "maps/verdicts.bpf.h"

/* ---- a connection arrives ---- */

SEC("sk_lookup")
int lookup_steer(struct bpf_sk_lookup *ctx)
{
	__u32 address[4], slot = policy_slot();
	struct fief_listener *listener;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	local_address(ctx, address);
	listener = find_listener(slot, address, ctx->local_port);
	return listener ? steer_class(ctx, listener, slot) : steer_filtered(ctx, address);
}

/* ---- a packet arrives at an interface ---- */

SEC("tcx/ingress")
int ingress_guards(struct __sk_buff *skb)
{
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
