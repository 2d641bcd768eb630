/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Kernel cookie: whether the kernel itself would take the cookie that a segment returns. */
#pragma once

#include "flow/packet.bpf.h"
#include "flow/tcp.bpf.h"

static __noinline bool kernel_cookie_check_at(const struct packet *p, __u32 seq)
{
	struct tcphdr tcp = {};

	tcp.source = bpf_htons(p->source_port);
	tcp.dest = bpf_htons(p->destination_port);
	tcp.seq = bpf_htonl(seq);
	tcp.ack_seq = bpf_htonl(p->ack);
	((__u8 *)&tcp)[TCP_FLAGS_AT] = TCP_ACK;
	if (p->ipv6) {
		struct ipv6hdr ip = {};

		__builtin_memcpy(&ip.saddr, p->source, 16);
		__builtin_memcpy(&ip.daddr, p->destination, 16);
		return !bpf_tcp_raw_check_syncookie_ipv6(&ip, &tcp);
	} else {
		struct iphdr ip = {};

		ip.saddr = ipv4_of(p->source);
		ip.daddr = ipv4_of(p->destination);
		return !bpf_tcp_raw_check_syncookie_ipv4(&ip, &tcp);
	}
}

static __always_inline bool kernel_cookie_check(const struct packet *p)
{
	return kernel_cookie_check_at(p, p->seq);
}
