/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Packet: what a frame of the link layer says, read once, and whether it is one that we work with at all.
 *
 * Problem: IPv4 options, IPv6 extension headers, fragments and tags must not lead round the door, and a header can lie
 * outside of the linear part of the buffer.
 * How: slices of a dynptr are copied where they are not linear. Tags and headers in front of TCP are walked, as many as a
 * packet holds, so that the port is known; a packet that bears any is `odd`: it is never answered by us. So is one with
 * urgent bytes: the kernel takes them out of the server's stream, which would then not be what was ruled. A packet
 * that ends within its TCP header, as a first fragment may, is `torn`: nothing but its ports is known. A frame above 64 kB that
 * GRO or a sender's offload made has no length in its header (BIG TCP), and in IPv6 a header in front of TCP that says so: it
 * is `big`, and read like any other, but not made into another packet. A first piece of IPv6 whose headers go on in another
 * one is blind: it may be for any port, and nobody honest sends it.
 * Limits: what is encrypted (ESP) or encapsulated is read by whoever unpacks it, and a tag that names a VLAN leads to that
 * VLAN's device, which has a door of its own. Fragments after the first carry no port; they are let through, since without
 * the first nothing comes of them. Of a source route that the machine follows (it does not unless told so) the address at
 * hand counts.
 */
#pragma once

#include "flow/address.bpf.h"
#include "flow/tcp.bpf.h"

#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_OFFSET	    0x1fff
#define IPV6_OFFSET	    0xfff8

/* Bounds for the verifier: more do not fit into a packet. */
#define TAGS_MOST	(0x10000 / 4)
#define EXTENSIONS_MOST (0x10000 / 8)

#define VLAN_NUMBER	0xfff
#define USUAL_LEAST	(sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr))

#define PACKET_BLIND	-2

struct packet {
	__u8 source[16] __attribute__((aligned(8))); /* IPv4 mapped; both are copied and compared in words of 8 */
	__u8 destination[16];
	__u32 seq; /* host order, like all below */
	__u32 ack;
	__u32 payload_length;
	__u16 source_port;
	__u16 destination_port;
	__u16 window;
	__u16 network; /* offsets in the frame */
	__u16 transport;
	__u16 payload;
	__u8 flags;
	__u8 ipv6;
	__u8 odd;	 /* bears what the door does not answer */
	__u8 torn;	 /* odd, and only the ports are known */
	__u8 big;	 /* bears a jumbo option */
	__u8 forged;	 /* of IPv6, with an IPv4 address: the wire brings none (RFC 4291, 2.5.5.2) */
	__u16 interface; /* where it came in, for the reader of its verdict; 0: its number is larger */
};

/* Neither bytes nor an end of the stream. */
static __always_inline bool is_bare(const struct packet *p)
{
	return !p->payload_length && !(p->flags & TCP_FIN);
}

/* The sequence number behind the packet. */
static __always_inline __u32 packet_end(const struct packet *p)
{
	return p->seq + p->payload_length + (p->flags & TCP_FIN);
}

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *out) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *in, __u32 offset, void *buffer, __u32 size) __ksym;

struct vlan_tag {
	__be16 tag;
	__be16 protocol;
};

struct tcp_ports {
	__be16 source;
	__be16 destination;
};

struct ipv6_extension {
	__u8 next;
	__u8 length;
	__be16 offset_and_more; /* of a fragment header */
};

/* A hop-by-hop header with nothing but a jumbo option (RFC 2675). */
struct ipv6_jumbo {
	__u8 next;
	__u8 length;
	__u8 option;
	__u8 option_length;
	__be32 payload_length;
};

#define OPTION_JUMBO 0xc2

static __always_inline int ipv4_read(struct bpf_dynptr *frame, struct packet *p, __u32 *end)
{
	struct iphdr room, *ip = bpf_dynptr_slice(frame, p->network, &room, sizeof(room));
	__u32 length;
	__u16 fragment;

	if (!ip || ip->version != 4 || ip->protocol != IPPROTO_TCP)
		return -1;
	fragment = bpf_ntohs(ip->frag_off);
	if (fragment & IPV4_OFFSET)
		return -1;
	length = ip->ihl * 4;
	if (length < sizeof(*ip))
		return -1;
	if (length != sizeof(*ip) || fragment & IPV4_MORE_FRAGMENTS)
		p->odd = 1;
	mapped_ipv4(ip->saddr, p->source);
	mapped_ipv4(ip->daddr, p->destination);
	p->transport = p->network + length;
	*end = ip->tot_len ? p->network + bpf_ntohs(ip->tot_len) : 0;
	return 0;
}

/* Walks to the TCP header; the packet ends at `end`, whatever the frame holds behind it. */
static __noinline int ipv6_walk(struct bpf_dynptr *frame, struct packet *p, __u32 next, __u32 end)
{
	struct ipv6_extension room, *extension;
	__u32 at = p->transport;
	int i;

	p->odd = 1;
	bpf_for (i, 0, EXTENSIONS_MOST) {
		if (next == IPPROTO_TCP) {
			p->transport = at;
			return 0;
		}
		extension = at + sizeof(room) > end ? NULL : bpf_dynptr_slice(frame, at, &room, sizeof(room));
		if (!extension)
			return PACKET_BLIND;
		switch (next) {
		case NEXTHDR_HOP:
		case NEXTHDR_ROUTING:
		case NEXTHDR_DEST:
		case NEXTHDR_MOBILITY:
			at += (extension->length + 1) * 8;
			break;
		case NEXTHDR_AUTH:
			at += (extension->length + 2) * 4;
			break;
		case NEXTHDR_FRAGMENT:
			if (bpf_ntohs(extension->offset_and_more) & IPV6_OFFSET)
				return -1;
			at += 8;
			break;
		default:
			return -1;
		}
		next = extension->next;
	}
	return -1;
}

/* Takes a jumbo option for what the kernel put there. One that came over the wire stands in no packet of several segments. */
static __always_inline bool jumbo_read(struct __sk_buff *skb, struct bpf_dynptr *frame, struct packet *p)
{
	struct ipv6_jumbo room, *jumbo = bpf_dynptr_slice(frame, p->transport, &room, sizeof(room));

	if (!skb->gso_size || !jumbo || jumbo->next != IPPROTO_TCP || jumbo->length || jumbo->option != OPTION_JUMBO ||
	    jumbo->option_length != sizeof(jumbo->payload_length) ||
	    bpf_ntohl(jumbo->payload_length) != skb->len - p->transport)
		return false;
	p->transport += sizeof(*jumbo);
	p->big = 1;
	return true;
}

static __always_inline int ipv6_read(struct __sk_buff *skb, struct bpf_dynptr *frame, struct packet *p, __u32 *end)
{
	struct ipv6hdr room, *ip = bpf_dynptr_slice(frame, p->network, &room, sizeof(room));

	if (!ip || ip->version != 6)
		return -1;
	p->ipv6 = 1;
	__builtin_memcpy(p->source, &ip->saddr, 16);
	__builtin_memcpy(p->destination, &ip->daddr, 16);
	p->forged = is_mapped(p->source) || is_mapped(p->destination);
	p->transport = p->network + sizeof(*ip);
	*end = ip->payload_len ? p->transport + bpf_ntohs(ip->payload_len) : 0;
	if (ip->nexthdr == IPPROTO_TCP)
		return 0;
	if (!*end && ip->nexthdr == NEXTHDR_HOP) {
		*end = skb->len; /* as the kernel takes it, whether the header says so or not */
		if (jumbo_read(skb, frame, p))
			return 0;
	}
	return ipv6_walk(frame, p, ip->nexthdr, *end);
}

static __always_inline bool is_tag(__u16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* Leaves the protocol behind the tags. The kernel takes off tags without a number; the others name a device. */
static __always_inline int tags_walk(struct __sk_buff *skb, struct bpf_dynptr *frame, struct packet *p, __u16 *protocol)
{
	struct vlan_tag room, *tag;
	int i;

	if (skb->vlan_present && skb->vlan_tci & VLAN_NUMBER)
		return -1;
	if (!is_tag(*protocol))
		return 0; /* an iterator costs as much as all of the rest */
	bpf_for (i, 0, TAGS_MOST) {
		if (!is_tag(*protocol))
			return 0;
		tag = bpf_dynptr_slice(frame, p->network, &room, sizeof(room));
		if (!tag || tag->tag & bpf_htons(VLAN_NUMBER))
			return -1;
		*protocol = tag->protocol;
		p->network += sizeof(*tag);
		p->odd = 1;
	}
	return -1;
}

/* The packet ends within its TCP header, whatever the frame holds behind it. */
static __always_inline int torn_read(struct bpf_dynptr *frame, struct packet *p, __u32 end)
{
	struct tcp_ports room, *ports;

	if (p->transport + sizeof(*ports) > end)
		return p->ipv6 ? PACKET_BLIND : -1; /* of IPv4 the kernel takes no piece below 8 bytes */
	ports = bpf_dynptr_slice(frame, p->transport, &room, sizeof(room));
	if (!ports)
		return -1;
	p->source_port = bpf_ntohs(ports->source);
	p->destination_port = bpf_ntohs(ports->destination);
	p->odd = 1;
	p->torn = 1;
	return 0;
}

/* The TCP header of a packet that ends at `end`. */
static __always_inline void tcp_read(struct __sk_buff *skb, const struct tcphdr *tcp, struct packet *p, __u32 end)
{
	__u32 length = tcp->doff * 4;

	p->source_port = bpf_ntohs(tcp->source);
	p->destination_port = bpf_ntohs(tcp->dest);
	p->seq = bpf_ntohl(tcp->seq);
	p->ack = bpf_ntohl(tcp->ack_seq);
	p->window = bpf_ntohs(tcp->window);
	p->flags = ((const __u8 *)tcp)[TCP_FLAGS_AT];
	if (p->flags & TCP_URG)
		p->odd = 1;
	p->payload = p->transport + length;
	if (length < sizeof(*tcp) || end < p->payload || end > skb->len)
		p->odd = 1;
	else
		p->payload_length = end - p->payload;
}

/* Reads the headers of most packets where they lie: Ethernet, IPv4 without options, not in pieces. False: it is another one. */
static __always_inline bool usual_read(struct __sk_buff *skb, struct packet *p)
{
	const struct iphdr *ip = (void *)(long)skb->data + sizeof(struct ethhdr);
	const struct tcphdr *tcp = (const void *)(ip + 1);
	void *data_end = (void *)(long)skb->data_end;
	__u32 end;

	if (skb->protocol != bpf_htons(ETH_P_IP) || p->network != sizeof(struct ethhdr) || (void *)(tcp + 1) > data_end)
		return false;
	end = p->network + bpf_ntohs(ip->tot_len);
	if (*(const __u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP ||
	    ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET) || end < USUAL_LEAST)
		return false;
	mapped_ipv4(ip->saddr, p->source);
	mapped_ipv4(ip->daddr, p->destination);
	p->transport = p->network + sizeof(*ip);
	tcp_read(skb, tcp, p, end);
	return true;
}

/* What no other reader knows. As packet_read(). */
static __noinline int unusual_read(struct __sk_buff *skb, struct packet *p)
{
	struct tcphdr room, *tcp;
	struct bpf_dynptr dynptr, *frame = &dynptr;
	__u16 protocol = skb->protocol;
	__u32 end = 0;
	int failed;

	if (bpf_dynptr_from_skb(skb, 0, frame) || tags_walk(skb, frame, p, &protocol))
		return -1;
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (ipv4_read(frame, p, &end))
			return -1;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		failed = ipv6_read(skb, frame, p, &end);
		if (failed)
			return failed;
	} else {
		return -1;
	}
	if (!end && skb->gso_size)
		end = skb->len; /* as the kernel takes it; else its own length counts */
	if (p->transport + sizeof(*tcp) > end)
		return torn_read(frame, p, end);
	tcp = bpf_dynptr_slice(frame, p->transport, &room, sizeof(room));
	if (!tcp)
		return -1; /* the kernel wants as much */
	tcp_read(skb, tcp, p, end);
	return 0;
}

/*
 * 0: `p` is filled; if it is odd, perhaps without the payload. -1: not TCP, or not for this machine. PACKET_BLIND: its headers
 * go on in another fragment, and its ports are there.
 */
static __noinline int packet_read(struct __sk_buff *skb, struct packet *p)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);

	if (skb->pkt_type != PACKET_HOST)
		return -1;
	p->interface = skb->ifindex > 0xffff ? 0 : skb->ifindex;
	p->network = buffer->network_header - buffer->mac_header;
	if (!(skb->vlan_present && skb->vlan_tci & VLAN_NUMBER) && usual_read(skb, p))
		return 0;
	return unusual_read(skb, p);
}
