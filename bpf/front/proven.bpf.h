/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Proven: whether a segment is the first after a handshake, by whoever's cookie.
 *
 * How: our cookie bears what was agreed (cookie.bpf.h); the kernel's is completed from its timestamp and from what is remembered
 * of the SYN (kernel_handshake.bpf.h). Where a cookie is short, the budget of bad ones is asked first (guesses.bpf.h).
 */
#pragma once

#include "cookie.bpf.h"
#include "gather.bpf.h"
#include "guesses.bpf.h"
#include "kernel_cookie.bpf.h"
#include "kernel_handshake.bpf.h"
#include "resent.bpf.h"

/* Bytes between the first one of a client that takes `size` and a segment with a valid cookie. */
static __noinline __u32 kernel_cookie_missing(const struct packet *p, struct tcp_sock *listening, __u16 size)
{
	__u32 told = SIZE_PLACES - 1, made, i;
	__u16 most = listening->rx_opt.user_mss;

	if (most && size > most)
		size = most;
	made = size_place(p, size);
	for (i = loop_from(1); i < SIZE_PLACES && can_loop; i++) {
		if (!kernel_cookie_check_at(p, p->seq - i))
			break;
		told--;
	}
	return made > told ? made - told : 0;
}

/* Whether the segment is the first after a handshake, by whoever's cookie; what was agreed is added to `with`, if it bears bytes. */
static __always_inline bool handshake_proven(struct front_context *front, struct tcp_sock *listening,
					     struct handshake *with)
{
	const struct packet *p = &front->packet;

	if (!(front->guard->flags & FIEF_GUARD_KERNEL))
		return cookie_check(front, p->seq - 1, p->ack - 1, with);
	if (!kernel_cookie_check(p))
		return false;
	if (is_bare(p))
		return true; /* nothing begins with it */
	kernel_cookie_read(p, listening, with);
	with->missing = kernel_cookie_missing(p, listening, with->segment_size);
	return true;
}
