/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Asked: a request that had its turn in the queue, and that its server has not got.
 *
 * Problem: TCP may not take what the door let pass (a wrong checksum), or keep it from the server (a byte before it is missing).
 * A reset that TCP does not take ends what waits. The request then comes again, or its last missing byte does, whenever the
 * client likes: its place has run out by then, and it would pass all that wait.
 * How: the socket knows as far as where requests of the queue were ruled. A packet that begins before that, while TCP lacks
 * it, goes to the queue once more, unless the place that was taken for it still lasts.
 * The end of a body whose head TCP has is not of these (late.bpf.h).
 */
#pragma once

#include "heads.bpf.h"
#include "places.bpf.h"
#include "tracked.bpf.h"

/* Whether the place that was taken for these bytes has not run out: that of an earlier request is for no other. */
__noinline int place_lasts(const struct packet *p __arg_nonnull)
{
	struct fief_served *served;
	struct fief_flow_key key;

	flow_key(p, &key);
	served = bpf_map_lookup_elem(&queue_serves, &key);
	return served && !has_run_out(served) && !is_behind(packet_end(p), served->upto);
}

/* Of a packet to a listener with a queue, which was ruled. What the rules said of it, or QUEUE_LATER. */
static __always_inline int asked_rule(struct front_context *front, const struct connection *on, int verdict)
{
	struct head_ranges *ranges = on->ranges;
	__u32 next = on->label->next;

	if (!is_behind(ranges->asked, on->tcp->rcv_nxt))
		ranges->asked = on->tcp->rcv_nxt; /* stays within the reach of sequence numbers */
	if (verdict == QUEUE_LATER && front->queued) {
		/* neither a request that has only begun has its turn, nor a body */
		ranges->asked = ranges->read;
		if (on->label->flags & FIEF_LABEL_TRACKED && is_behind(ranges->read, next))
			ranges->asked = next;
	} else if (verdict == TCX_NEXT && front->packet.payload_length && is_behind(ranges->asked, on->tcp->rcv_nxt) &&
		   is_behind(ranges->asked, front->packet.seq) && !place_lasts(&front->packet)) {
		front->queued = true;
		return QUEUE_LATER;
	}
	return verdict;
}
