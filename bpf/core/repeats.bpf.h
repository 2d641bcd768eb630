/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Repeats: when the kernel sends its answers to connection requests again.
 *
 * Problem: a flood fills a listener's queue of request sockets within milliseconds. One second later the kernel repeats all of
 * these answers in one go, in the timer softirq, over every thread. With a backlog of 4096 that outlasts the ring of a virtual
 * interface at 200,000 SYNs a second. A SYN of the best class may be lost there, and its client then waits for a second.
 * How: the kernel asks for the first timeout of each request socket. Beyond FEW_REQUESTS in the queue it gets a random one, so
 * that about REPEATS_A_SECOND are due in each second; later timeouts are multiples of it. A client whose answer was lost does
 * not wait for that: it sends its SYN again after a second, and the kernel answers that at once.
 * Limits: sockets of managed cgroups only. A request socket of a full queue lives longer by the same factor.
 */
#pragma once

#define FEW_REQUESTS	 128
#define REPEATS_A_SECOND 512
#define SECONDS_MOST	 60 /* the kernel's own limit is 120 */

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

static __always_inline void repeats_spread(struct bpf_sock_ops *ops)
{
	struct bpf_sock_ops_kern *asked = bpf_cast_to_kern_ctx(ops);
	struct sock *request = asked->sk;
	struct inet_connection_sock *listening;
	__u32 queued, second, seconds;

	if (!request || request->__sk_common.skc_state != BPF_TCP_NEW_SYN_RECV)
		return;
	listening = bpf_core_cast(request->__sk_common.skc_listener, struct inet_connection_sock);
	queued = listening->icsk_accept_queue.qlen.counter;
	if (queued <= FEW_REQUESTS)
		return;
	second = listening->icsk_rto;		   /* of a socket that listens: TCP_TIMEOUT_INIT */
	seconds = queued / (REPEATS_A_SECOND / 8); /* in eighths */
	if (seconds > SECONDS_MOST * 8)
		seconds = SECONDS_MOST * 8;
	ops->reply = second + (__u32)((__u64)bpf_get_prandom_u32() * second * seconds / 8 >> 32);
}
