/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Clock: what moves a queue on.
 *
 * Problem: nobody tells when a server has done with a request, and no program of ours runs then.
 * How: the first byte of an answer (that is no interim one), a FIN or a reset leaves by a guarded interface; or the socket's state ends. The flow's
 * request then is with the server no longer, and if somebody waits the packet at hand is the carrier's original.
 * Most packets of a connection bear neither bytes nor an end. They say nothing of all this, and pass at once. That a place has run out,
 * or a limit is over, shows without them: by the ticks, by the next request, answer or end of any connection of the queue, and by what
 * those send again that wait. What is known of a request whose place has run out goes with the next one, the answer or the end of its
 * own connection, and a slow client's with any packet.
 * Where a place is for the whole answer (`until`), each byte that leaves prolongs it: by `stale` while more of what the server
 * has written is still to leave, else by a moment (as place_ends() says for a client that owes bytes). The connection's next request, its
 * FIN or a reset end it at once. A place that is for the connection lasts from the first byte to the server's FIN, a reset or
 * the end of the socket, and further requests of that connection pass at once.
 * Limits: an answer that leaves by another interface shows with the connection's next request, or its end. A socket that ends
 * without a packet kicks nobody; the next event does. Where an answer ends is not read: a server that pauses within one loses
 * the place, and takes it again, beside the one that has got it meanwhile, with its next byte.
 */
#pragma once

#include "flow/steered.bpf.h"
#include "guard.bpf.h"
#include "interim.bpf.h"
#include "latency.bpf.h"
#include "narrow.bpf.h"

#define TCP_HEADER_MOST 60

/* The longest packet that is read as bare. */
#define BARE_MOST (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + TCP_HEADER_MOST)

/* Whether nothing stands behind this header, which begins at `at` of a packet of so many bytes, and it ends nothing. */
static __always_inline bool ends_bare(const struct tcphdr *tcp, __u32 at, __u32 length)
{
	__u8 flags = ((const __u8 *)tcp)[TCP_FLAGS_AT];

	return !(flags & (TCP_FIN | TCP_RST)) && length == at + tcp->doff * 4;
}

/*
 * Whether the packet bears neither bytes nor an end, read where its headers lie. False also of what is not of the usual shape. And of
 * a link that is no Ethernet: its queues have no clock (ticks.bpf.h), and each packet of theirs is one.
 */
static __always_inline bool leaves_bare(struct __sk_buff *skb)
{
	const __u32 network = sizeof(struct ethhdr);
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	void *data, *end;

	if (skb->len > BARE_MOST || (__u16)(buffer->network_header - buffer->mac_header) != network)
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = data + network;
		const struct tcphdr *tcp = (const void *)(ip + 1);

		if ((void *)(tcp + 1) > end || *(const __u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP)
			return false;
		return ends_bare(tcp, network + sizeof(*ip), skb->len);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = data + network;
		const struct tcphdr *tcp = (const void *)(ip + 1);

		if ((void *)(tcp + 1) > end || ip->nexthdr != IPPROTO_TCP)
			return false;
		return ends_bare(tcp, network + sizeof(*ip), skb->len);
	}
	return false;
}

/*
 * Whether such packets may be all that leaves, for as long as the client likes: it owes bytes of a body, says what nobody answers, or takes
 * nothing of what the server has written. Its place has run out soon, and the next of these packets ends what is known of it: else many
 * slow clients would push others out of the table.
 */
static __always_inline bool is_slow_client(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct fief_label *label;
	struct tcp_sock *tcp;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (!sk)
		return false;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label && label->flags & (FIEF_LABEL_OWES | FIEF_LABEL_TURNS))
		return true;
	tcp = bpf_skc_to_tcp_sock(sk);
	return tcp && tcp->snd_nxt != tcp->write_seq;
}

/* Whether the packet begins the answer, or ends the connection. */
static __always_inline bool is_answer(const struct packet *p, const struct fief_served *served)
{
	return p->flags & (TCP_FIN | TCP_RST) ||
	       (p->payload_length && is_behind(p->seq + p->payload_length, served->answer));
}

/*
 * Whether with the packet all has left that the server has written so far. It may be one that is sent again. Of no socket of
 * this machine: nobody knows.
 */
static __always_inline bool is_all_written(struct __sk_buff *skb, const struct packet *p)
{
	__u32 upto = p->seq + p->payload_length;
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tcp;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (!sk)
		return true;
	tcp = bpf_skc_to_tcp_sock(sk);
	return !tcp || !is_behind(tcp->write_seq, is_behind(tcp->snd_nxt, upto) ? tcp->snd_nxt : upto);
}

/* More of an answer leaves. */
static __always_inline void answer_goes_on(struct fief_queue *q, struct fief_served *served, bool all, __u64 now)
{
	handed_forget(queue_class(q, served->class), served->since_ns);
	served->since_ns = 0;
	served_prolong(q, served, place_ends(q, now, all));
}

/* A packet leaves. */
static __always_inline int answer_leaves_by(struct __sk_buff *skb)
{
	struct fief_served *served;
	struct packet packet = {};
	struct fief_flow_key key;
	struct fief_queue *q;
	bool answers, goes_on, interim;
	__u32 number;
	__u64 now;

	if (leaves_bare(skb) && !is_slow_client(skb))
		return TCX_NEXT;
	if (packet_read(skb, &packet))
		return TCX_NEXT;
	if (!port_guarded(policy_slot(), packet.source_port))
		return TCX_NEXT;
	reversed_key(&packet, &key);
	interim = is_interim(skb, &packet);
	if (interim)
		interim_note(skb, &packet, &key);
	served = bpf_map_lookup_elem(&queue_serves, &key);
	if (!served) {
		number = packet.flags & (TCP_FIN | TCP_RST) ? lasting_end(&key) : 0;
		q = queue_get(number);
		if (q && queue_wants(q, bpf_ktime_get_ns()))
			queue_kick(skb, q, number);
		return TCX_NEXT;
	}
	now = bpf_ktime_get_ns();
	number = served->queue;
	q = queue_get(number);
	answers = is_answer(&packet, served);
	if (interim && answers && !(packet.flags & (TCP_FIN | TCP_RST)) && packet.seq == served->answer) {
		served->answer += packet.payload_length;
		return TCX_NEXT;
	}
	if (answers && q && served->since_ns && served->ends > now && packet.payload_length) {
		if (q->promises)
			latency_count(q, served->class, now - served->since_ns, now);
		if (q->finds)
			answered_count(q, now - served->since_ns, now);
	}
	goes_on = answers && q && !(packet.flags & (TCP_FIN | TCP_RST));
	if (goes_on && q->until == FIEF_UNTIL_RESPONSE)
		answer_goes_on(q, served, is_all_written(skb, &packet), now);
	else if (goes_on && q->until == FIEF_UNTIL_CLOSE && served_keep(&key, served))
		; /* it is remembered there */
	else if (answers || (served->since_ns && served->ends <= now))
		/* one that has run out is not remembered: many slow clients would push others out of the table */
		served_end_of(q, &key, served, now);
	if (q && queue_wants(q, now))
		queue_kick(skb, q, number);
	return TCX_NEXT;
}

/* A socket ends, perhaps without a packet. */
static __always_inline int socket_ends(struct sock *sk, int state)
{
	struct fief_served *served;
	struct fief_flow_key key = {};
	__u32 *words;

	if (state != BPF_TCP_CLOSE)
		return 0;
	/* in a network namespace of their own users have every address */
	if (!is_of_steered(sk))
		return 0;
	if (sk->__sk_common.skc_family == AF_INET) {
		mapped_ipv4(sk->__sk_common.skc_daddr, key.remote);
		mapped_ipv4(sk->__sk_common.skc_rcv_saddr, key.local);
	} else if (sk->__sk_common.skc_family == AF_INET6) {
		words = (__u32 *)key.remote;
		words[0] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[0];
		words[1] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[1];
		words[2] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[2];
		words[3] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[3];
		words = (__u32 *)key.local;
		words[0] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		words[1] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		words[2] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		words[3] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[3];
	} else {
		return 0;
	}
	key.remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	/* its number is 0 by now, the port in the header is not */
	key.local_port = bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
	served = bpf_map_lookup_elem(&queue_serves, &key);
	if (served)
		served_end(&key, served);
	lasting_end(&key);
	return 0;
}
