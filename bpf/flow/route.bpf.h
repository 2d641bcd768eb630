/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Route: what the kernel's routes say of a packet, and of an answer to it.
 *
 * Problem: an answer belongs where the machine's routes lead, which is not always where the packet came from: a balancer
 * may have rewritten its link address and nothing else, or the way back is another link.
 * How: the lookup is the one that the kernel does for a socket of its own, with the loopback as its incoming device. If its
 * result is the link and the link address that the packet came from, then the answer goes back at once; else the kernel
 * hands it to the neighbour that the route names.
 * Limits: the kernel answers only for a device that forwards (`net.ipv4.conf.lo.forwarding`, which `fief apply` sets, and
 * IPv6's likewise); without it answers go back where the packets came from. So they do in a VRF, and to link-local addresses.
 * Rules by firewall mark or by user are not looked at.
 */
#pragma once

#include "flow/packet.bpf.h"
#include "maps/resolved.bpf.h"

#define LOOPBACK_INDEX	 1 /* in every network namespace */
#define IFF_L3MDEV_SLAVE (1u << 21)

/*
 * Unknown neighbours on the packet's own link that are asked for in a second. With one for each invented source a flood
 * would fill the machine's table of neighbours. There is no answer above the rate: sent back where the packet came from it
 * would prove to whoever is there a neighbour's address. A neighbour that is one has asked for this machine's link address
 * before it sent, and is known by that.
 */
#define RESOLVE_INTERVAL_NS  5000000ull
#define RESOLVE_TOLERANCE_NS 1000000000ull

static __always_inline void route_ends(struct bpf_fib_lookup *route, const struct packet *p, const __u8 *from,
				       const __u8 *to)
{
	if (p->ipv6) {
		route->family = AF_INET6;
		__builtin_memcpy(route->ipv6_src, from, 16);
		__builtin_memcpy(route->ipv6_dst, to, 16);
	} else {
		route->family = AF_INET;
		__builtin_memcpy(&route->ipv4_src, from + 12, 4);
		__builtin_memcpy(&route->ipv4_dst, to + 12, 4);
	}
}

/* Addressed to this machine, and not through it. */
static __noinline bool route_is_local(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup route = {.ifindex = skb->ifindex, .l4_protocol = IPPROTO_TCP};
	long found;

	route_ends(&route, p, p->source, p->destination);
	found = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	return found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

enum answer_leaves {
	LEAVES_BACK,	 /* by the link and to the link address that the packet came from */
	LEAVES_BY_ROUTE, /* to the neighbour that the route names */
	LEAVES_NOWHERE,	 /* the kernel has no route, or one that only it can use */
	LEAVES_UNASKED,	 /* its neighbour is not known, and too many are asked for */
};

/* Too large for the stack. */
struct answer_way {
	struct bpf_fib_lookup route;
	struct bpf_redir_neigh next;
	__u8 source[ETH_ALEN]; /* of the packet */
};

static __always_inline bool in_vrf(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	struct net_device *device = buffer->dev;

	return BPF_CORE_READ_BITFIELD(device, priv_flags) & IFF_L3MDEV_SLAVE;
}

/* Whether the packet came from the neighbour; one without a link header came from the only one that there is. */
static __always_inline bool came_from_neighbour(struct __sk_buff *skb, const struct packet *p, struct answer_way *way)
{
	if (p->network < sizeof(struct ethhdr))
		return true;
	return !bpf_skb_load_bytes(skb, ETH_ALEN, way->source, sizeof(way->source)) &&
	       !__builtin_memcmp(way->source, way->route.dmac, sizeof(way->source));
}

static __always_inline bool resolve_take(void)
{
	__u64 *arrival_ns = resolved_arrival(), now = bpf_ktime_get_ns(), arrival, base;

	if (!arrival_ns)
		return false;
	arrival = *(volatile __u64 *)arrival_ns;
	base = arrival > now ? arrival : now;
	return base - now <= RESOLVE_TOLERANCE_NS &&
	       __sync_val_compare_and_swap(arrival_ns, arrival, base + RESOLVE_INTERVAL_NS) == arrival;
}

/*
 * Where an answer to the packet leaves (enum answer_leaves); `way` is filled for LEAVES_BY_ROUTE. A function of its own to the
 * verifier, which then follows it once and not from each place that answers.
 */
__noinline int answer_route(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			    struct answer_way *way __arg_nonnull)
{
	struct bpf_fib_lookup *route = &way->route;
	bool direct;

	if (skb->ifindex == LOOPBACK_INDEX || is_link_local(p->source) || in_vrf(skb))
		return LEAVES_BACK;
	__builtin_memset(route, 0, sizeof(*route));
	route->ifindex = LOOPBACK_INDEX;
	route->l4_protocol = IPPROTO_TCP;
	route->tot_len = sizeof(struct iphdr) + sizeof(struct tcphdr); /* else the packet's own length counts */
	route_ends(route, p, p->destination, p->source);
	switch (bpf_fib_lookup(skb, route, sizeof(*route), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return route->ifindex == skb->ifindex && came_from_neighbour(skb, p, way) ? LEAVES_BACK
											  : LEAVES_BY_ROUTE;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		direct = route->family == AF_INET6 ? !__builtin_memcmp(route->ipv6_dst, p->source, 16)
						   : !__builtin_memcmp(&route->ipv4_dst, p->source + 12, 4);
		return !direct || resolve_take() ? LEAVES_BY_ROUTE : LEAVES_UNASKED;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return LEAVES_BACK;
	default:
		return LEAVES_NOWHERE;
	}
}

/* Sends the packet, which is an answer by now, to the neighbour that the route names. */
__noinline int route_take(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			  struct answer_way *way __arg_nonnull)
{
	/* the kernel wants a link header, which it replaces */
	if (p->network < sizeof(struct ethhdr) && bpf_skb_change_head(skb, sizeof(struct ethhdr), 0))
		return TCX_DROP;
	way->next.nh_family = way->route.family;
	__builtin_memcpy(way->next.ipv6_nh, way->route.ipv6_dst, sizeof(way->next.ipv6_nh));
	return bpf_redirect_neigh(way->route.ifindex, &way->next, sizeof(way->next), 0);
}
