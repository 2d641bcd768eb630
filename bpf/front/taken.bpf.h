/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Taken: whether TCP would take the bytes of a segment to a socket.
 *
 * Problem: a verdict on a request costs its client a reset, a penalty or a place in the stream. A sender that does not see a
 * connection can forge a segment with its addresses; TCP drops that, and the door must not act upon it.
 * How: TCP's own checks, by the socket's fields: the window, the timestamp (PAWS, RFC 7323) and the acknowledgement (RFC 5961,
 * 5.2). A segment that fails goes on without its bytes and its FIN. TCP then answers it as usual, and no unruled byte can enter
 * the stream, even if the socket has moved on when TCP checks. So does a byte that tries a shut window (BSD, macOS and Windows
 * send one).
 * Limits: TCP does not check for an old acknowledgement if the segment is just the one that it expects; here that is a failure
 * too. A sender on the same machine can acknowledge bytes that its peer is still handing down: as long as the socket is busy,
 * its unsent bytes count as sent.
 */
#pragma once

#include "cut.bpf.h"
#include "heads.bpf.h"

#define NANOSECONDS	     1000000000ull
#define PAWS_WINDOW	     1
#define PAWS_FORGETS_SECONDS (60 * 60 * 24 * 24)

/* As the kernel's tcp_sequence(): not all of it taken already, and none of it only behind the window. */
static __always_inline bool is_in_window(const struct packet *p, struct tcp_sock *tcp)
{
	__u32 edge = tcp->rcv_wup + tcp->rcv_wnd;

	if (is_behind(tcp->rcv_nxt, edge))
		edge = tcp->rcv_nxt;
	return !is_behind(tcp->rcv_wup, packet_end(p)) && !is_behind(p->seq, edge);
}

/* As the kernel's tcp_receive_window(): no byte is in it. */
static __always_inline bool takes_nothing(struct tcp_sock *tcp)
{
	return !is_behind(tcp->rcv_wup + tcp->rcv_wnd, tcp->rcv_nxt);
}

static __always_inline bool is_busy(struct tcp_sock *tcp)
{
	socket_lock_t *lock = &tcp->inet_conn.icsk_inet.sk.sk_lock;
	__u32 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), lock);
	return word || lock->owned;
}

/* As the kernel's tcp_ack(). */
static __always_inline bool is_known_ack(const struct packet *p, struct tcp_sock *tcp)
{
	__u32 back = tcp->max_window;

	if (tcp->bytes_acked < back)
		back = tcp->bytes_acked;
	if (is_behind(tcp->snd_una - back, p->ack))
		return false;
	return !is_behind(p->ack, tcp->snd_nxt) || (!is_behind(p->ack, tcp->write_seq) && is_busy(tcp));
}

/* As the kernel's tcp_paws_check(). */
static __always_inline bool is_timely(__u32 stamp, __u32 recent, __u32 seen_s, __u64 now)
{
	if (!recent || (__s32)(recent - stamp) <= PAWS_WINDOW)
		return true;
	return (__s32)(now / NANOSECONDS - (seen_s + PAWS_FORGETS_SECONDS)) >= 0;
}

/* Leaves the packet's options in `with`. */
static __noinline bool would_be_taken(struct __sk_buff *skb, const struct packet *p, struct tcp_sock *tcp,
				      struct handshake *with)
{
	if (options_read(skb, p, with) || !is_in_window(p, tcp) || !is_known_ack(p, tcp))
		return false;
	if (p->payload_length && takes_nothing(tcp))
		return false;
	return !with->timestamps || !BPF_CORE_READ_BITFIELD(tcp, rx_opt.tstamp_ok) ||
	       is_timely(with->timestamp, tcp->rx_opt.ts_recent, tcp->rx_opt.ts_recent_stamp, bpf_ktime_get_ns());
}

/* The segment goes on without what TCP would not take. A bare one where the window is shut draws no answer, and one before it does. */
static __always_inline int untaken_strip(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					 struct tcp_sock *tcp)
{
	struct packet *p = &front->packet;

	/* where it says something new, that is what TCP is to hear: it is tried again */
	if (takes_nothing(tcp) && p->seq == tcp->rcv_nxt && p->ack == tcp->snd_una)
		p->seq--;
	return packet_strip(skb, front, stream);
}
