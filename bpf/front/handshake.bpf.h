/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Handshake: answers a SYN in the listener's name, and keeps nothing.
 *
 * Problem: a kernel listener spends a request socket and a route on each SYN, also on those of a flood.
 * How: the SYN becomes the SYN-ACK in place; the cookie (cookie.bpf.h) carries what the door needs later. The answer offers
 * what the machine offers: its switches are read from the listener's network namespace. The largest segment follows from the
 * link.
 * Limits: no TCP Fast Open (the data is sent again), no MD5 or AO (such SYNs are answered unsigned), no ECN without timestamps.
 */
#pragma once

#include "cookie.bpf.h"
#include "expected.bpf.h"
#include "flow/options.bpf.h"
#include "segment.bpf.h"

#define WINDOW_MOST	  64240
#define SEGMENT_SIZE_MOST 65495

/* The machine's switches: an option that it has not is not taken up. */
static __always_inline void handshake_offer(struct tcp_sock *listening, struct handshake *with)
{
	struct net *net = listening->inet_conn.icsk_inet.sk.__sk_common.skc_net.net;

	if (!net->ipv4.sysctl_tcp_timestamps)
		with->timestamps = 0;
	if (!net->ipv4.sysctl_tcp_sack)
		with->sack = 0;
	if (!net->ipv4.sysctl_tcp_window_scaling)
		with->scale = SCALE_NONE;
	if (!net->ipv4.sysctl_tcp_ecn || !with->timestamps)
		with->ecn = 0;
}

static __always_inline void synack_options(struct segment *s, const struct handshake *with, __u32 timestamp, __u16 size)
{
	__u8 *at = s->rest;

	*(__be32 *)at = bpf_htonl(OPTION_SIZE << 24 | 4 << 16 | size);
	at += 4;
	if (with->timestamps) {
		*(__be32 *)at =
		    bpf_htonl((with->sack ? OPTION_SACK << 24 | 2 << 16 : OPTION_NOP << 24 | OPTION_NOP << 16) |
			      OPTION_TIMESTAMPS << 8 | 10);
		*(__be32 *)(at + 4) = bpf_htonl(timestamp);
		*(__be32 *)(at + 8) = bpf_htonl(with->timestamp);
		at += 12;
	} else if (with->sack) {
		*(__be32 *)at = bpf_htonl(OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_SACK << 8 | 2);
		at += 4;
	}
	if (with->scale != SCALE_NONE) {
		*(__be32 *)at = bpf_htonl(OPTION_NOP << 24 | OPTION_SCALE << 16 | 3 << 8 | RECEIVE_SCALE);
		at += 4;
	}
	s->options = at - s->rest;
}

/*
 * The window that the kernel will find when it takes the connection over; half of the buffer is the kernel's own. A request that may
 * have to wait is offered what is kept of it: a client that was offered more would send it in vain, and again by its own timeout. Later
 * windows are rounded up to a unit of theirs.
 */
static __always_inline __u16 window_offered(struct tcp_sock *listening, const struct fief_guard *guard)
{
	__u32 half = (__u32)listening->inet_conn.icsk_inet.sk.sk_rcvbuf / 2;
	__u32 most = guard->queue ? FIEF_QUEUE_MOST - (1u << RECEIVE_SCALE) : WINDOW_MOST;

	return half < most ? half : most;
}

/* The SYN-ACK; NULL: there is none. */
static __noinline struct segment *handshake_answer(struct __sk_buff *skb, struct front_context *front,
						   struct tcp_sock *listening)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	struct packet *p = &front->packet;
	struct handshake with;
	__u32 sequence, timestamp, size;
	struct segment *s;
	__u16 window;
	__u8 flags = TCP_SYN | TCP_ACK;

	if (options_read(skb, p, &with))
		return NULL;
	with.ecn = (p->flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR);
	handshake_offer(listening, &with);
	window = window_offered(listening, front->guard);
	if (with.ecn)
		flags |= TCP_ECE;
	if (cookie_make(front, &with, &sequence, &timestamp))
		return NULL;
	if (front->proven)
		end_expect(front, sequence, expected_place(p));
	size = buffer->dev->mtu - sizeof(struct tcphdr) - (p->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (size > SEGMENT_SIZE_MOST)
		size = SEGMENT_SIZE_MOST;
	s = segment_begin(sequence, p->seq + 1, window, flags);
	if (!s)
		return NULL;
	synack_options(s, &with, timestamp, size);
	return s;
}
