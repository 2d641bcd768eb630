/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Kernel handshake: the handshake where the kernel answers SYNs with its own cookies (FIEF_GUARD_KERNEL).
 *
 * Problem: our own answer leaves before the packet filter has seen the SYN; where a stateful filter is in use, the kernel has
 * to answer.
 * How: with tcp_syncookies = 2 and tcp_timestamps = 2 (no secret offset) the kernel keeps nothing either. Its cookie is checked
 * at the first bytes; the options stand in the lowest bits of the echoed timestamp, as in cookie_init_timestamp(). The window
 * scale is computed as tcp_select_initial_window() does. An unusual segment size is remembered from the SYN, since the helper
 * does not tell it.
 *
 *   seq       s0-1   s0   s0+1  s0+2  s0+3       a cookie made for s0 and the last of four sizes
 *   tells       -     3     2     1     0        is one for each of these numbers, and for a smaller size
 *
 * So the size tells how many bytes before a segment are missing. They are in doubt until the client, which repeats the earliest
 * that it has, begins there again: the usual size is only assumed, and a remembered one may be of a SYN that another forged in
 * the client's name. The size is forgotten with the first such repetition, and with each SYN of a usual size.
 * Limits: a flood of unproven SYNs with unusual sizes makes the door forget the sizes of unproven clients. They repeat their
 * first segment, and are sent segments of the usual size. Proven clients fare the same if other proven ones flood.
 * net.core.rmem_max above tcp_rmem's would make the kernel's window scale larger than ours.
 */
#pragma once

#include "cookie.bpf.h"
#include "flow/key.bpf.h"
#include "flow/options.bpf.h"
#include "kernel_cookie.bpf.h"
#include "sources.bpf.h"
#include "maps/unusual_segments.bpf.h"

#define KERNEL_SCALE	  0x0f
#define KERNEL_SACK	  0x10
#define KERNEL_ECN	  0x20

#define SEGMENT_SIZE_IPV4 1460
#define SEGMENT_SIZE_IPV6 1440
#define SIZE_PLACES	  4 /* sizes that a cookie can tell: msstab of net/ipv4/syncookies.c and net/ipv6/syncookies.c */

static __always_inline __u16 usual_size(const struct packet *p)
{
	return p->ipv6 ? SEGMENT_SIZE_IPV6 : SEGMENT_SIZE_IPV4;
}

/* Which of the sizes the kernel writes into the cookie of a client that takes `size`. */
static __always_inline __u32 size_place(const struct packet *p, __u16 size)
{
	if (p->ipv6)
		return (size >= 1420) + (size >= 1440) + (size >= 8940);
	return (size >= 1300) + (size >= 1440) + (size >= 1460);
}

static __always_inline bool is_usual(const struct packet *p, __u16 size)
{
	return size >= usual_size(p) && size_place(p, size) == size_place(p, usual_size(p));
}

/* A function of its own to the verifier. Mostly there is nothing: a lookup takes no lock, as a removal does. */
static __noinline int size_forget(const struct packet *p)
{
	struct fief_flow_key key;

	flow_key(p, &key);
	if (bpf_map_lookup_elem(&proven_segments, &key))
		bpf_map_delete_elem(&proven_segments, &key);
	if (bpf_map_lookup_elem(&unusual_segments, &key))
		bpf_map_delete_elem(&unusual_segments, &key);
	return 0;
}

/* The SYN goes on to the kernel. */
static __noinline void kernel_cookie_prepare(struct __sk_buff *skb, const struct front_context *front)
{
	const struct packet *p = &front->packet;
	struct fief_flow_key key;
	struct handshake with;

	if (options_read(skb, p, &with))
		return;
	size_forget(p);
	if (is_usual(p, with.segment_size))
		return;
	flow_key(p, &key);
	if (source_proven(front)) {
		bpf_map_update_elem(&proven_segments, &key, &with.segment_size, BPF_ANY);
		return;
	}
	bpf_map_delete_elem(&proven_segments, &key); /* of a connection before */
	bpf_map_update_elem(&unusual_segments, &key, &with.segment_size, BPF_ANY);
}

/* 0: it is not known to be other than the usual one. */
static __always_inline __u16 size_remembered(const struct packet *p)
{
	__u16 least = p->ipv6 ? SEGMENT_SIZE_IPV6_LEAST : SEGMENT_SIZE_UNSAID, *size;
	struct fief_flow_key key;

	flow_key(p, &key);
	size = bpf_map_lookup_elem(&proven_segments, &key);
	if (!size)
		size = bpf_map_lookup_elem(&unusual_segments, &key);
	if (!size)
		return 0;
	return *size < least ? least : *size;
}

static __always_inline __u8 kernel_scale(struct tcp_sock *listening)
{
	struct sock *sk = &listening->inet_conn.icsk_inet.sk;
	__u32 space = sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_rmem[2], scale = 0, i;

	if (sk->sk_userlocks & SOCK_RCVBUF_LOCK)
		space = (__u32)sk->sk_rcvbuf / 2;
	for (i = 0; i < SCALE_MOST; i++)
		scale += space >> (16 + i) > 0;
	return scale;
}

/* What the kernel's cookie and timestamp say. */
static __noinline void kernel_cookie_read(const struct packet *p, struct tcp_sock *listening, struct handshake *with)
{
	__u16 size = size_remembered(p);

	with->segment_size = size ? size : usual_size(p);
	with->scale = SCALE_NONE;
	with->sack = 0;
	with->ecn = 0;
	if (!with->timestamps)
		return;
	with->scale = with->echo & KERNEL_SCALE;
	with->sack = !!(with->echo & KERNEL_SACK);
	with->ecn = !!(with->echo & KERNEL_ECN);
	with->receive_scale = kernel_scale(listening);
}
