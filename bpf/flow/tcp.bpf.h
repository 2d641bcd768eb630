/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* TCP: the flags of its header, the order of its sequence numbers, and what its sockets still take. */
#pragma once

#define TCP_FLAGS_AT 13 /* kernels do not agree on the bit fields of struct tcphdr */
#define TCP_FIN	     0x01
#define TCP_SYN	     0x02
#define TCP_RST	     0x04
#define TCP_PSH	     0x08
#define TCP_ACK	     0x10
#define TCP_URG	     0x20
#define TCP_ECE	     0x40
#define TCP_CWR	     0x80

#define RCV_SHUTDOWN 1 /* of sk_shutdown: nobody reads any more */

/* Whether sequence number `a` lies behind `b`. */
static __always_inline bool is_behind(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* Whether the client of a socket in this state may still send. Without branches: the verifier would follow each state by itself. */
static __always_inline bool has_stream(__u32 state)
{
	const __u32 streams = 1u << BPF_TCP_ESTABLISHED | 1u << BPF_TCP_FIN_WAIT1 | 1u << BPF_TCP_FIN_WAIT2;
	__u32 has = streams >> (state & 31);

	barrier_var(has);
	return has & 1;
}
