/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Lane: the way of a packet into the thread of its container, through a queue that is bounded.
 *
 *      sv, in softirq                  fief-7s                fief-7r, in its thread napi/fief-7r
 *     +--------------+   redirect   +----------+   ring   +------------------------------------+
 *     |  lrp_sorts   |------------->| (no queue)|-------->|  lrp_leaves, IP, TCP, the socket    |
 *     +--------------+              +----------+   256    +------------------------------------+
 *          entered++                                          left++
 *
 * Problem: work that no thread will have time for must not begin, and its drop must have a name.
 * How: segments that enter and leave are counted, because segments fill the ring; above the bound the packet is dropped here.
 * The ring has a few places more, for CPUs that count at the same moment, so it never overflows. A merged packet is cut again
 * on its way into the lane. So entering segments are counted by length and segment size: a device may tell the size alone
 * (virtio-net, tap and netfront leave gso_segs at 0). Two signs show packets that the kernel lost within the lane, or that
 * another sender put into it: more segments have left than entered, or none has left for STALLED_NS. The difference is set off
 * (`amiss`). Where somebody has removed the pair, its packets are received as all others, until an apply makes it anew.
 * Limits: several lanes for one listener do not share a bound. The link address of the real interface is not that of the
 * lane's: the packet is declared to be for this host, as it was found to be. A thread that gets no CPU for STALLED_NS is taken
 * for a loss: the ring then drops packets beyond its room, without a name. A packet of more segments than a lane holds never
 * passes. A pair that is down loses its packets. A lane that was full as it was removed refuses connection requests for STALLED_NS.
 */
#pragma once

#include "arrival.bpf.h"
#include "counted.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/lanes.bpf.h"
#include "maps/loads.bpf.h"

static __always_inline bool port_has_lanes(__u32 slot, __u16 port)
{
	struct fief_lane_ports *ports = bpf_map_lookup_elem(&lane_ports, &slot);
	__u32 word = port / 64;

	barrier_var(word); /* 6.12's verifier does not know that a port in network order had 16 bits */
	return ports && ports->word[word & (FIEF_PORT_WORDS - 1)] & 1ull << (port & 63);
}

/* The level of overload from which on this listener's packets take their lanes is reached. */
static __always_inline bool lanes_in_use(__u32 slot, __u32 listener)
{
	__u32 at = slot * FIEF_MAX_LISTENERS + listener, *from = bpf_map_lookup_elem(&lane_levels, &at);
	struct fief_load *load;

	if (!from || !*from)
		return false;
	if (*from == 1 + FIEF_ALWAYS)
		return true;
	load = bpf_map_lookup_elem(&loads, &listener);
	return load && load->level >= *from - 1;
}

/*
 * By inode. Sorters of two network namespaces run at once while a policy moves, and where an interface has moved with its sorter:
 * each finds the lanes of its own.
 */
static __always_inline __u32 netns_of(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	return buffer->dev->nd_net.net->ns.inum;
}

/*
 * The lane of a container in a network namespace, or of the nearest one above it: a container for one request has none of its
 * own.
 */
static __always_inline struct fief_lane *lane_of(struct fief_ref of, __u32 netns)
{
	struct fief_lane_key key = {.netns = netns};
	struct fief_lane *lane = NULL;
	int depth;

	bpf_for (depth, 0, FIEF_MAX_DEPTH) {
		struct fief_container *c;

		key.of = of.id;
		lane = bpf_map_lookup_elem(&lanes, &key);
		if (lane && lane->container.generation == of.generation)
			return lane;
		c = bpf_map_lookup_elem(&containers, &of.id);
		if (!c || c->generation != of.generation || of.id < FIEF_FIRST_ID)
			return NULL;
		of = c->parent;
	}
	return NULL;
}

static __noinline int lane_discard(struct fief_lane *lane, __u32 listener, __u32 segments)
{
	struct fief_verdict_key key = {.rule = FIEF_NO_ID, .listener = listener, .reason = FIEF_LANE_FULL};

	if (!lane)
		return 0;
	__sync_fetch_and_add(&lane->discarded, segments);
	key.container = lane->container;
	verdict_add(&key, segments);
	return 0;
}

#define STALLED_NS 1000000000ull

/* Segments that a packet is cut into before it waits in the ring. */
static __always_inline __u32 segments_entering(struct __sk_buff *skb, const struct packet *p)
{
	__u32 size = skb->gso_size, length = skb->len;

	if (!size || length <= p->payload)
		return 1;
	return (length - p->payload + size - 1) / size;
}

/* What was received together has been merged after the ring, and was counted by the kernel itself. */
static __always_inline __u32 segments_leaving(struct __sk_buff *skb)
{
	return skb->gso_size && skb->gso_segs ? skb->gso_segs : 1;
}

/* Segments in the ring. What is lost or strange shows here, and nowhere else. */
static __always_inline __u64 lane_waiting(struct fief_lane *lane)
{
	__s64 amiss = *(volatile __s64 *)&lane->amiss;
	__u64 left = *(volatile __u64 *)&lane->left; /* before those who entered: who is between is taken to wait */
	__s64 inside = *(volatile __u64 *)&lane->entered - left, waiting = inside - amiss;
	__u64 now;

	if (!waiting)
		return 0;
	if (waiting > 0) {
		now = bpf_ktime_get_coarse_ns();
		if (lane->left_seen != left) {
			lane->left_seen = left;
			lane->left_seen_ns = now;
			return waiting;
		}
		if (now - lane->left_seen_ns < STALLED_NS)
			return waiting;
		lane->left_seen_ns = now;
	}
	__sync_val_compare_and_swap(&lane->amiss, amiss, inside);
	return 0;
}

/*
 * Whether the packet is a SYN of a class whose lane is full, to a listener that was seen a moment ago: nothing else need be
 * asked of a flood. It is discarded then.
 */
static __always_inline bool lane_flooded(const struct packet *p, __u32 slot, struct listener_found *listener,
					 __u32 netns)
{
	struct fief_client *client;
	struct fief_lane *lane;

	if ((p->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN || !is_live(listener, bpf_ktime_get_coarse_ns()))
		return false;
	client = classify(slot, listener->index, p->source);
	lane = client ? lane_of(client->container, netns) : NULL;
	if (!lane || lane_waiting(lane) < FIEF_LANE_PACKETS)
		return false;
	lane_discard(lane, listener->index, 1);
	return true;
}

/* The kernel has no other call that tells a program of tc whether it could redirect there. */
static __always_inline bool lane_is_there(struct __sk_buff *skb, const struct fief_lane *lane)
{
	__u32 mtu = 0;

	return bpf_check_mtu(skb, lane->sends, &mtu, 0, 0) >= 0;
}

static __always_inline int lane_enter(struct __sk_buff *skb, struct fief_lane *lane, const struct packet *p,
				      __u32 listener)
{
	__u32 segments = segments_entering(skb, p);

	if (!lane_is_there(skb, lane))
		return TCX_NEXT;
	if (lane_waiting(lane) + segments > FIEF_LANE_PACKETS) {
		lane_discard(lane, listener, segments);
		return TCX_DROP;
	}
	__sync_fetch_and_add(&lane->entered, segments);
	return bpf_redirect(lane->sends, 0);
}

static __always_inline int lane_leave(struct __sk_buff *skb)
{
	struct fief_lane_key key = {.netns = netns_of(skb), .of = skb->ifindex};
	__u32 *container = bpf_map_lookup_elem(&lane_ends, &key);
	struct fief_lane *lane;

	if (!container)
		return TCX_NEXT;
	key.of = *container;
	lane = bpf_map_lookup_elem(&lanes, &key);
	if (!lane)
		return TCX_NEXT;
	__sync_fetch_and_add(&lane->left, segments_leaving(skb));
	bpf_skb_change_type(skb, PACKET_HOST);
	return TCX_NEXT;
}
