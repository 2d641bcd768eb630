/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Lazy receiver processing: protocol work in a thread of the class that the packet is for. This file is a table of contents of
 * the parts:
 *
 *   arrival   which packets may take a lane
 *   owner     which container it is for
 *   lane      the bounded queue to the thread of that container
 *
 * It reuses the core's maps and is loaded only where a policy wants it.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "abi.h"
#include "kernel.bpf.h"
#include "owed.bpf.h"

#include "arrival.bpf.h"
#include "owner.bpf.h"
#include "lane.bpf.h"

/* On the interfaces to the network, after the guards: what those let pass is sorted. */
SEC("tcx/ingress")
int lrp_sorts(struct __sk_buff *skb)
{
	struct listener_found *listener;
	__u32 slot = policy_slot(), netns;
	struct fief_ref owner;
	struct packet p = {};
	struct fief_lane *lane;

	/* a packet of the queue's has no other one of its connection to wait for */
	if (must_pass(skb) || makes_connection(skb))
		return TCX_NEXT;
	if (!arrival_read(skb, &p) || !port_has_lanes(slot, p.destination_port))
		return TCX_NEXT;
	listener = listener_search(slot, p.destination, p.destination_port);
	if (!listener || !lanes_in_use(slot, listener->index))
		return TCX_NEXT;
	netns = netns_of(skb);
	if (lane_flooded(&p, slot, listener, netns))
		return TCX_DROP;
	if (!arrival_owner(skb, &p, slot, listener, &owner))
		return TCX_NEXT;
	lane = lane_of(owner, netns);
	if (!lane)
		return TCX_NEXT;
	return lane_enter(skb, lane, &p, listener->index);
}

/* On the receiving end of each lane, in its thread. */
SEC("tcx/ingress")
int lrp_leaves(struct __sk_buff *skb)
{
	return lane_leave(skb);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
