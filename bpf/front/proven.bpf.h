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

/* Whether the segment is the first after a handshake, by whoever's cookie; what was agreed is added to `with`. */
static __always_inline bool handshake_proven(struct front_context *front, struct tcp_sock *listening,
					     struct handshake *with)
{
	const struct packet *p = &front->packet;

	if (!(front->guard->flags & FIEF_GUARD_KERNEL))
		return cookie_check(front, p->seq - 1, p->ack - 1, with);
	if (!kernel_cookie_check(p))
		return false;
	kernel_cookie_read(p, listening, with);
	with->missing = kernel_cookie_missing(p, listening, with->segment_size);
	return true;
}

/*
 * Whether the segment is one guess too many at the cookie of a client without timestamps. What goes on behind kept bytes is
 * none: it is known by the whole cookie.
 */
static __noinline bool is_guess(struct front_context *front, struct stream *stream)
{
	struct packet *p = &front->packet;

	if (!bad_too_many(p, front->now, 0))
		return false;
	if (!is_bare(p) && hold_find(p, stream))
		return false;
	stream->times = resent(p, front->now, RESENT_SEGMENT);
	return !stream->times || bad_too_many(p, front->now, stream->times);
}
