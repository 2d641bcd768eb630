/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Arrival: which packets may take a lane.
 *
 * Problem: a lane stands between the link layer and the network layer, and a packet that it does not know must not pass through
 * it.
 * How: the reader of the door says what the frame bears, and marks unusual frames.
 * Limits: the network layer receives all unusual frames as usual: those for another link address, tagged ones, fragments,
 * frames with options, extension headers or urgent bytes, and link-local addresses, which belong to their interface.
 */
#pragma once

#include "flow/packet.bpf.h"

static __always_inline bool arrival_read(struct __sk_buff *skb, struct packet *p)
{
	if (skb->vlan_present || packet_read(skb, p) || p->odd)
		return false;
	return !p->ipv6 || (!is_link_local(p->source) && !is_link_local(p->destination));
}
