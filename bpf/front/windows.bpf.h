/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Windows: whether a client takes the answer to its request, and how much more it may send while that waits.
 *
 * Problem: a client that takes no answer would hold a place of the server for nothing, and miss the latency that its class is promised.
 * How: TCP sends a segment once all of it fits into the window (tcp_snd_wnd_test), and a part of it 0.2 s later. A socket's segments are no
 * longer than half of the largest window of its client so far (tcp_bound_to_half_wnd): those of a new one always fit, and those of one
 * whose client had a larger window before may not.
 * Nor does an answer begin behind one that fills TCP's congestion window, until its client acknowledges some of that (tcp_cwnd_test).
 * Limits: by the window that the request bears; a client may shut it behind that. A short answer would fit into less. By turns a client
 * may speak while its server does, so there what it has not acknowledged says nothing.
 */
#pragma once

#include "behind.bpf.h"
#include "gather.bpf.h"
#include "guard.bpf.h"
#include "handshake.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/queues.bpf.h"

/* Of the client's windows. `tcp`: its socket, if there is one. */
static __always_inline __u32 window_scale(struct tcp_sock *tcp, const struct handshake *with)
{
	__u32 scale = with->scale == SCALE_NONE ? 0 : with->scale;

	barrier_var(scale); /* one load for both would be of two kinds of memory */
	if (tcp)
		scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.snd_wscale);
	return scale;
}

#define WINDOW_LEAST 536 /* the least segment of IPv4 */

/* Below such a window of its client an answer does not begin at once. `tcp`: its socket, if there is one. */
static __always_inline __u32 window_least(struct tcp_sock *tcp)
{
	return tcp ? tcp->mss_cache : WINDOW_LEAST;
}

/* Whether the window that its client offers is too small for the answer. `tcp`: its socket, if there is one. */
static __always_inline bool is_shut(const struct packet *p, struct tcp_sock *tcp, const struct handshake *with)
{
	return (__u32)p->window << (window_scale(tcp, with) & 15) < window_least(tcp);
}

/*
 * Whether TCP sends nothing more now, nor does by the packet: an old acknowledgement alone does not say so. `tracked`: FIEF_LABEL_* of what
 * its client asks.
 */
static __always_inline bool is_congested(const struct packet *p, __u32 tracked, const struct tcp_sock *tcp)
{
	/* tcp_packets_in_flight */
	__u32 flies = tcp->packets_out - (tcp->sacked_out + tcp->lost_out) + tcp->retrans_out;

	return !(tracked & FIEF_LABEL_TURNS) && flies >= tcp->snd_cwnd && !is_behind(p->ack, tcp->snd_una);
}

/* Whether the answer to what was asked on a socket would not begin now: its client offers no window for it, or TCP sends nothing more. */
static __always_inline bool is_stopped(const struct packet *p, struct tcp_sock *tcp, const struct handshake *with)
{
	return is_shut(p, tcp, with) || is_congested(p, FIEF_LABEL_TRACKED, tcp);
}

/* Whether the request of a socket is not answered at once though all of it is here: TCP cannot hand it on yet, or sends nothing more. */
static __always_inline bool is_held_up(const struct packet *p, __u32 tracked, const struct tcp_sock *tcp)
{
	return is_behind(p->seq, tcp->rcv_nxt) || is_congested(p, tracked, tcp);
}

/* Whether its client has not sent all of its body, or offers no window for the answer. `tcp`: its socket, if there is one. */
static __always_inline bool is_owing(const struct packet *p, const struct fief_admitted *entry, struct tcp_sock *tcp,
				     const struct handshake *with)
{
	return is_shut(p, tcp, with) ||
	       (entry->tracked & FIEF_LABEL_TRACKED &&
		(entry->tracked & BODY_STATES || is_behind(entry->next, p->seq + p->payload_length)));
}

/*
 * The sequence number up to which the client of a waiting request may send. `tcp`: the request's socket, else the listening one. The
 * edge that the client was offered before stays; it is offered nothing more.
 */
static __noinline __u32 waiting_edge(const struct front_context *front, struct tcp_sock *tcp, bool later, __u32 begin)
{
	if (later && tcp)
		return tcp->rcv_wup + tcp->rcv_wnd;
	if (front->guard->flags & FIEF_GUARD_KERNEL)
		return begin + 0xffff; /* the most that a SYN-ACK can offer */
	return tcp ? begin + window_offered(tcp, front->guard) : begin;
}

/* The window field beside the acknowledgement of what waits, up to `end`. */
static __always_inline __u16 waiting_window(const struct front_context *front, struct tcp_sock *tcp, bool later,
					    const struct handshake *with, __u32 begin, __u32 end)
{
	__u32 edge = waiting_edge(front, tcp, later, begin), scale = receive_scale(with);

	barrier_var(scale); /* one load for both would be of two kinds of memory */
	if (later && tcp)
		scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.rcv_wscale);
	return is_behind(edge, end) ? window_field(edge - end, scale) : 0;
}

/*
 * How far it is acknowledged of which no more can be kept. A client that was offered more sends that in vain: the last byte,
 * which the server acknowledges when it gets the request, is the sign for it to go on.
 */
static __always_inline __u32 waiting_end(__u32 end, __u32 length)
{
	return length >= FIEF_QUEUE_MOST ? end - 1 : end;
}
