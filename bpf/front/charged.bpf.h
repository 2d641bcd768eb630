/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Charged: whose the receive work is that the door does on a request which waits.
 *
 * Problem: such a packet finds no socket, and the core would charge its work to the system container. A class whose requests wait would
 * have that on top of its limit (a twentieth, with requests of 0.3 ms). But with all of it charged, a client that asks and resets its
 * connection, some thousand times a second, would use up the limit of its class, and no other client of it would be served.
 * How: the door says whose it is, and the core charges the packet's part when the next one comes (core/receive.bpf.h). A class is charged
 * for as many requests that wait as the server gets of them, and for CHARGED_AHEAD more.
 * Limits: not the work on what is refused, which levels of overload must not go by (load.bpf.h). Where no threads work for the class,
 * its server is not managed, and the queue goes by the number of its requests: nothing is charged then. Two CPUs at the same moment may
 * count one more or less.
 */
#pragma once

#include "maps/cpus.bpf.h"
#include "maps/queues.bpf.h"

#define CHARGED_AHEAD 255 /* at most, which a byte can hold */

static __always_inline void received_for(struct fief_ref container)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct fief_cpu *cs = bpf_map_lookup_elem(&cpus, &cpu);

	if (!cs || cs->receive != FIEF_RX_OPEN || !cs->pool_packets)
		return;
	cs->kept_for = container;
	barrier();
	cs->receive = FIEF_RX_DOOR;
}

/* A request of the class waits from now on. */
static __always_inline void waits_charge(struct fief_queue_class *of, struct fief_ref container)
{
	__u8 ahead = *(volatile __u8 *)&of->ahead;

	if (!of->managed || ahead == CHARGED_AHEAD)
		return;
	of->ahead = ahead + 1;
	received_for(container);
}

/* The server gets one that waited. */
static __always_inline void waits_repay(struct fief_queue_class *of)
{
	of->ahead -= !!of->ahead;
}

/* The server could not get it. */
static __always_inline void waits_owe(struct fief_queue_class *of)
{
	of->ahead += of->ahead != CHARGED_AHEAD;
}
