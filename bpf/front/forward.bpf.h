/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Forward: connections that pass through this machine to others, a gateway before a farm.
 *
 * Problem: a flood to the farm passes through the gateway, which has no socket for it.
 * How: SYNs to the address of a listener with `forward` are policed as they pass, by their address before any translation.
 * Nothing is answered here, so no cookie comes back: a source is proven if connection tracking has seen its handshake.
 * Limits: no header control. A request can only be read once the handshake is done, and by then the numbers of one of the two
 * handshakes would have to be translated for the life of the connection, as a proxy does. Without connection tracking no source
 * is proven, and isolation shuts out all of a prefix.
 */
#pragma once

#include "conntrack.bpf.h"
#include "guard.bpf.h"
#include "police.bpf.h"

static __always_inline bool is_forward(const struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_FORWARD;
}

static __noinline int forward_syn(struct front_context *front)
{
	bool drop = false;

	load_look(front, NULL);
	police_syn(front, &drop);
	if (drop)
		return TCX_DROP;
	syn_count(front, false);
	return TCX_NEXT;
}

/*
 * Whatever the client sends after its handshake, an acknowledgment too: its only bytes may overtake the handshake's end on
 * another CPU, and come before tracking has seen either.
 */
static __noinline int forward_segment(struct __sk_buff *skb, struct front_context *front)
{
	const struct packet *p = &front->packet;

	if (!source_proven(front) && tracked_status(skb, p) & HANDSHAKE_TRACKED)
		source_prove(front);
	return TCX_NEXT;
}
