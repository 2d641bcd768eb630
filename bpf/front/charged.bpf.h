/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Charged: whose the receive work is that the door does on a request which waits.
 *
 * Problem: such a packet finds no socket, and the core would charge its work to the system container. A class whose requests wait would
 * have that on top of its limit (a twentieth, with requests of 0.3 ms).
 * How: the door says whose it is, and the core charges the packet's part when the next one comes (core/receive.bpf.h).
 * Limits: not the work on what is refused, which levels of overload must not go by (load.bpf.h). Where no threads work for the class,
 * its server is not managed, and the queue goes by the number of its requests: nothing is charged then.
 */
#pragma once

#include "maps/cpus.bpf.h"

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
