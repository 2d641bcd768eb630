/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Cost: which client a charge is for, while somebody asks (fief explain --costliest).
 *
 * Problem: an account says how much time a class of clients cost, not which of them.
 * How: a charge is a client's where a packet of its connection is received (packet_charge), or where the thread took its container
 * from its connection (follow.bpf.h): both know the socket, whose other end is the client. A CPU gathers what it charges for one
 * client; costly.bpf.h tells it to those that keep places.
 * Limits: what has no connection that was accepted at a labelled listener is no client's: UDP, outgoing connections, sockets that an
 * application assigned. Behind a proxy the proxy is the client.
 */
#pragma once

#include "maps/costs.bpf.h"
#include "maps/cpus.bpf.h"

/* Whose cost a charge is; 0: no client's. */
static __always_inline __u64 cost_whose(const struct fief_cpu *cs, struct fief_ref to,
					const struct fief_cost_room *room)
{
	if (to.id == FIEF_SYSTEM)
		return 0;
	if (cs->receive == FIEF_RX_PACKET)
		return room->received;
	if (cs->receive || cs->softirq_vector || cs->in_irq || !cs->has_task)
		return 0;
	return cs->task.client;
}

static __always_inline void cost_unplaced(struct fief_cost_room *room, __u64 ns)
{
	room->unplaced_ns[0] += ns;
	room->unplaced_ns[1] += ns;
}

/* At every charge, so it looks into no set. */
static __noinline int cost_charge(struct fief_cpu *cs, struct fief_ref to, __u64 ns)
{
	struct fief_cost_room *room = cost_room();
	struct fief_cost_gather *of;
	__u64 client;

	if (!room)
		return 0;
	client = cost_whose(cs, to, room);
	if (!client)
		return 0;
	of = cs->receive == FIEF_RX_PACKET ? &room->packet : &room->thread;
	if (!of->ns) {
		of->client = client;
		of->from_ns = cs->last_ns - ns;
	}
	if (of->client == client)
		of->ns += ns;
	else
		cost_unplaced(room, ns);
	return 0;
}
