/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Route: what the kernel's routes say of a packet, and of an answer to it.
 *
 * Problem: an answer belongs where the machine's routes lead, which is not always where the packet came from: a balancer
 * may have rewritten its link address and nothing else, or the way back is another link.
 * How: the lookup is the one that the kernel does for a socket of its own, with the loopback as its incoming device. If its
 * result is the link and the link address that the packet came from, then the answer goes back at once; else the kernel
 * hands it to the neighbour that the route names. A lookup costs as much as a third of the answer to a SYN. So a client of IPv4 whose
 * answer went back is answered so for WAY_TICKS more, while its packets come from there.
 * Limits: the kernel answers only for a device that forwards (`net.ipv4.conf.lo.forwarding`, which `fief apply` sets, and
 * IPv6's likewise); without it answers go back where the packets came from. So they do in a VRF, and to link-local addresses. When
 * routes change, answers go the old way back for as long as that is known.
 * Rules by firewall mark or by user are not looked at.
 */
#pragma once

#include "classify.bpf.h"
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
		address_copy(route->ipv6_src, from);
		address_copy(route->ipv6_dst, to);
	} else {
		route->family = AF_INET;
		route->ipv4_src = ipv4_of(from);
		route->ipv4_dst = ipv4_of(to);
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
	__u16 source[ETH_ALEN / 2]; /* of the packet */
};

static __always_inline bool in_vrf(struct __sk_buff *skb)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	struct net_device *device = buffer->dev;

	return BPF_CORE_READ_BITFIELD(device, priv_flags) & IFF_L3MDEV_SLAVE;
}

static __always_inline bool same_link(const __u16 *one, const __u16 *other)
{
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2];
}

/* Reads the link address that the packet came from, which lies at its begin. False: it has no link header. */
static __always_inline bool link_read(struct __sk_buff *skb, const struct packet *p, __u16 *source)
{
	const __u16 *link = (void *)(long)skb->data;

	if (p->network < sizeof(struct ethhdr) || (void *)(link + ETH_ALEN) > (void *)(long)skb->data_end)
		return false;
	source[0] = link[3];
	source[1] = link[4];
	source[2] = link[5];
	return true;
}

/* ---- the way back, as it was a moment ago ---- */

#define WAY_TICK  20 /* of nanoseconds, as a shift */
#define WAY_TICKS 10

static __always_inline __u32 way_now(void)
{
	return bpf_ktime_get_coarse_ns() >> WAY_TICK;
}

/* Where it is kept; NULL: nowhere. */
static __always_inline struct way_back *way_place(const struct packet *p)
{
	struct client_found *kept;
	__u64 source[2];

	if (p->ipv6 || !p->interface)
		return NULL;
	address_copy(source, p->source);
	kept = client_place(source[0], source[1]);
	return kept && is_client(kept, source[0], source[1]) ? &kept->back : NULL;
}

/* Whether answers to packets as this one went back a moment ago. */
static __always_inline bool way_is(const struct way_back *back, const struct packet *p, const __u16 *link)
{
	__u32 until = *(volatile __u32 *)&back->until;

	return back->local == ipv4_of(p->destination) && back->interface == p->interface &&
	       same_link(back->link, link) && until && until - way_now() - 1 < WAY_TICKS;
}

static __always_inline void way_note(struct way_back *back, const struct packet *p, const __u16 *link)
{
	*(volatile __u32 *)&back->until = 0;
	barrier();
	back->local = ipv4_of(p->destination);
	back->interface = p->interface;
	back->link[0] = link[0];
	back->link[1] = link[1];
	back->link[2] = link[2];
	barrier();
	*(volatile __u32 *)&back->until = way_now() + WAY_TICKS;
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
	bool direct, linked = link_read(skb, p, way->source);
	struct way_back *back;

	if (skb->ifindex == LOOPBACK_INDEX || is_link_local(p->source) || in_vrf(skb))
		return LEAVES_BACK;
	back = linked ? way_place(p) : NULL;
	if (back && way_is(back, p, way->source))
		return LEAVES_BACK;
	__builtin_memset(route, 0, sizeof(*route));
	route->ifindex = LOOPBACK_INDEX;
	route->l4_protocol = IPPROTO_TCP;
	route->tot_len = sizeof(struct iphdr) + sizeof(struct tcphdr); /* else the packet's own length counts */
	route_ends(route, p, p->destination, p->source);
	switch (bpf_fib_lookup(skb, route, sizeof(*route), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		/* without a link header it came from the only neighbour that there is */
		if (route->ifindex != skb->ifindex || (linked && !same_link(way->source, (const __u16 *)route->dmac)))
			return LEAVES_BY_ROUTE;
		if (back)
			way_note(back, p, way->source);
		return LEAVES_BACK;
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
